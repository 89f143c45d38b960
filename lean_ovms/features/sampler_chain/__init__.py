"""llama.cpp's chain of samplers."""
