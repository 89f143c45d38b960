"""Errors inside the engine child, and what is kept of the native engine's messages."""

from __future__ import annotations


class EngineLost(Exception):
    """The pipeline cannot be used again; the process has to be replaced."""


def last_line(error: Exception) -> str:
    """GenAI's messages have several lines, the first ones with source paths of its build machine."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
