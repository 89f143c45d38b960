"""Tests of completions."""
