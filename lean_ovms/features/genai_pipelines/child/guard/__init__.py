"""Keeps openvino_genai's pipelines from what they cannot do."""
