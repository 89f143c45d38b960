"""The endpoint of Hugging Face's text-embeddings-inference that other APIs do not have in the same form."""
