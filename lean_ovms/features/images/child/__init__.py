"""The engine child's task for models that make and edit images, on openvino_genai's pipelines."""
