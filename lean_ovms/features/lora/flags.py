"""Translates llama.cpp's flags of adapters to --lora_modules.

An adapter gets the name of its file, and requests to the model itself use it.
"""

from __future__ import annotations

import json
import math
from pathlib import PurePath


def applied(text: str) -> str:
    """Translates paths with commas between them."""
    return " ".join(_module(path, 1.0) for path in text.split(","))


def scaled(text: str) -> str:
    """Translates adapters in the form PATH:SCALE, with commas between them."""
    found = []
    for part in text.split(","):
        path, colon, number = part.rpartition(":")
        try:
            scale = float(number)
        except ValueError:
            scale = math.nan
        if not colon or not math.isfinite(scale):
            raise ValueError("PATH:SCALE, with commas between several")
        found.append(_module(path, scale))
    return " ".join(found)


def _module(path: str, scale: float) -> str:
    """Returns an adapter as an object of --lora_modules."""
    if not path:
        raise ValueError("the path of an adapter")
    return json.dumps({"name": PurePath(path).stem, "path": path, "scale": scale, "applied": True})
