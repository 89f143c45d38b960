"""Holds what the APIs of embeddings, rerank, scores and classes share: inputs, options, the engine's call,
encodings."""
