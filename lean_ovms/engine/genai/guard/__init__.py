"""Scheduling around openvino_genai's pipelines, whose KV cache, prefix cache and queue cannot be seen from outside."""
