"""The pipelines of openvino_genai, for models, devices and options that the paged engine does not serve."""
