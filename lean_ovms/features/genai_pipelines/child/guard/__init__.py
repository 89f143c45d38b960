"""Guards openvino_genai's pipelines against situations in which they fail."""
