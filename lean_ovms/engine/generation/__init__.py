"""Text generation in the engine child, on any Pipeline. Knows no openvino."""
