"""Text-to-speech models: they speak texts."""
