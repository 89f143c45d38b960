"""What every engine needs to load a model: tokenizers. Knows no pipeline and no requests."""
