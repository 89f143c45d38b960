"""The endpoints of embeddings, rerank, score, classify and pooling, and the code that they share."""
