"""Translates values of other servers' flags that replace how a model scales positions.

Each function returns the value of --rope_parameters, and raises ValueError with the allowed values.
"""

from __future__ import annotations

import json
import math
from typing import Any

from .overrides import KINDS

OTHERS = (
    "a JSON object with rope_parameters, rope_scaling or rope_theta, for GGUF files; for others, "
    "change config.json in the model's directory"
)
"""What --hf-overrides may be, and what to do instead of others."""


def scaling(text: str) -> str:
    """Translates the name of a kind of scaling, as llama.cpp takes it, and returns vLLM's JSON object as it is."""
    if text.startswith("{"):
        return text
    if text not in KINDS:
        raise ValueError("none, linear or yarn")
    return json.dumps({"rope_type": text})


def inverse_factor(text: str) -> str:
    """Translates the factor of RoPE's frequencies: its inverse is that of the context. 0 leaves it to the file."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError("a positive number")
    return json.dumps({"factor": 1 / number}) if number else ""


def hf_overrides(text: str) -> str:
    """Translates the members of vLLM's object that scale positions; all others are those of config.json."""
    given = json.loads(text)
    found: dict[str, Any] = {}
    for name, value in given.items() if isinstance(given, dict) else [("", None)]:
        if name in ("rope_parameters", "rope_scaling") and isinstance(value, dict):
            found |= value
        elif name == "rope_theta":
            found[name] = value
        else:
            raise ValueError(OTHERS)
    return json.dumps(found)
