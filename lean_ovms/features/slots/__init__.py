"""Slots as in llama.cpp's server: the cached blocks of a text are saved to a file, and restored."""
