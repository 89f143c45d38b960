"""Encodes the images of prompts: one module for each model family, the encoder's thread, and the images' tokens."""
