"""Pipelines on openvino-genai. The only package that imports openvino."""
