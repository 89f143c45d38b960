"""The pipelines of openvino_genai in the engine process, and the guard that avoids their faults."""
