"""Image models, which generate images from texts and edit images."""
