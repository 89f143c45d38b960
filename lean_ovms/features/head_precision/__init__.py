"""Quantizes a language model's output head to fewer bits than its file has."""
