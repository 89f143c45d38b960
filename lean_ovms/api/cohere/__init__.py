"""Cohere's API: embeddings by type. Its rerank is the one of api/vllm/rerank.py."""
