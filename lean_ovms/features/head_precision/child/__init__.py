"""Quantizes the output head of a network in the engine process."""
