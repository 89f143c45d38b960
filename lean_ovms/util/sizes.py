"""Formats numbers of bytes for people."""

from __future__ import annotations


def human_size(count: int) -> str:
    """Returns a number of bytes with a suitable unit."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
