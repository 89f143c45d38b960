"""The engine child's task for models that compute vectors, scores or classes, on plain openvino."""
