"""A generation engine on plain openvino: paged attention, continuous batching and sampling of our own."""
