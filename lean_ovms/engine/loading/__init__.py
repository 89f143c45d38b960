"""Loads what all engines need: model files, devices, settings and tokenizers. Independent of any pipeline."""
