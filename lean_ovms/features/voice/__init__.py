"""Text-to-speech models."""
