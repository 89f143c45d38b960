"""The paged engine: continuous batching, sampling and grammars in Python on openvino's paged attention."""
