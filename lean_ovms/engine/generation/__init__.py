"""Text generation in the engine process with any Backend; independent of openvino."""
