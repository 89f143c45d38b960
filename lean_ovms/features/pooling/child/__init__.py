"""The task of the engine process for models that compute vectors, scores or classes, on plain OpenVINO."""
