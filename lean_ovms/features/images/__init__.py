"""Image models: they make images of texts, and edit images."""
