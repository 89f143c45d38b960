"""The task of the engine process for models that generate and edit images, with openvino_genai's pipelines."""
