"""Loads what every engine needs of a model: its files, devices and settings, tokenizers, errors. Knows no pipeline."""
