"""Slots: what is cached of one text, in a file, as in llama.cpp's server."""
