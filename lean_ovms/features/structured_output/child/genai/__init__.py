"""Grammars in the pipelines of openvino_genai."""
