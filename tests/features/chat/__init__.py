"""Tests of chat completions."""
