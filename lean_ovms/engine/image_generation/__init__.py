"""The engine child's task for models that make images of texts, on openvino_genai's Text2ImagePipeline."""
