"""Which precisions of keys and values the CPU can cache. Pure: no openvino.

openvino (2026.4) has kernels of attention for keys and values that are both compressed, or both as precise as each
other; each other pair ends the loading with a sentence about its own types.
"""

from __future__ import annotations

from typing import Any

from ...errors import StartError

BOTH, KEYS, VALUES = "KV_CACHE_PRECISION", "KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION"
HINT = "INFERENCE_PRECISION_HINT"
GROUPS = (("u8", "u4"), ("f16", "bf16"), ("f32",))
"""Precisions that go together."""
DEFAULT = "u8"


def completed(properties: dict[str, Any]) -> dict[str, str]:
    """Returns the properties that a network needs besides these, for keys and values of their precisions.

    Where one of the two is named, the other is u8 if that goes with it, or else the same. A cache in f32 needs a
    network that computes in f32. Raises StartError where the CPU has no such cache.
    """
    named = {name: str(properties[name]).lower() for name in (BOTH, KEYS, VALUES) if properties.get(name)}
    if not named:
        return {}
    for name, kind in named.items():
        if not any(kind in group for group in GROUPS):
            raise StartError(f"--{name.lower()}: {kind} is none of {', '.join(sum(GROUPS, ()))}")
    alone = named.get(BOTH) or (DEFAULT if DEFAULT in _group(named.get(KEYS) or named[VALUES]) else "")
    keys = named.get(KEYS) or alone or named[VALUES]
    values = named.get(VALUES) or alone or named[KEYS]
    asked = ", ".join(f"--{name.lower()} {kind}" for name, kind in named.items())
    if values not in _group(keys):
        allowed = "; ".join(" or ".join(group) for group in GROUPS)
        raise StartError(f"{asked}: keys would be in {keys} and values in {values}; what goes together is {allowed}")
    hint = str(properties.get(HINT) or "").lower()
    if hint and (hint != "f32" if keys == "f32" else hint == "f32" and "bf16" in (keys, values)):
        raise StartError(f"{asked}: there is no such cache where {HINT} of --plugin_config is {hint}")
    found = {} if BOTH in named else {KEYS: keys, VALUES: values}
    return {**found, HINT: "f32"} if keys == "f32" else found


def _group(kind: str) -> tuple[str, ...]:
    return next(group for group in GROUPS if kind in group)
