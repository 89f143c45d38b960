"""Reads and writes the files of models on disk. No other package knows these formats."""
