"""Values of a GGUF file's metadata that options replace: --override_kv, and --rope_parameters for its positions.

Keys and types are those of llama-server's --override-kv; the members of --rope_parameters are those of config.json in
transformers. https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...config.options import read_object
from ...errors import WrongOptions
from .architectures import ARCHITECTURES, ENCODERS
from .metadata import StringArray

Value = int | float | bool | str
ARCHITECTURE = "general.architecture"
FORM = "KEY=TYPE:VALUE with the types int, float, bool and str"
STRUCTURE = ("general.alignment", "split.")
"""The beginnings of the keys that say where tensors are in the file."""
KINDS = {"none": "none", "default": "none", "linear": "linear", "yarn": "yarn"}
"""The kinds of scaling in files, by the names of options."""
NAMES = {
    "rope_theta": "freq_base",
    "factor": "scaling.factor",
    "original_max_position_embeddings": "scaling.original_context_length",
    "attention_factor": "scaling.yarn_attn_factor",
    "extrapolation_factor": "scaling.yarn_ext_factor",
    "beta_fast": "scaling.yarn_beta_fast",
    "beta_slow": "scaling.yarn_beta_slow",
}
"""The keys of numbers after "ARCHITECTURE.rope.", by the members of --rope_parameters."""
WHOLE, MAY_BE_ZERO = "original_max_position_embeddings", "extrapolation_factor"
_ENTRY = re.compile(r'"((?:[^"]|"")*)"(?:,|$)|([^,]*)(?:,|$)')
"""Matches an entry of --override_kv, in quotes (doubled inside) if it has a comma, as in llama.cpp."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """The values that the options of a model replace in the metadata of its file."""

    values: Mapping[str, Value] = field(default_factory=dict)
    """The values of --override_kv by key."""
    positions: Mapping[str, Any] = field(default_factory=dict)
    """The members of --rope_parameters."""

    @classmethod
    def read(cls, values: str, positions: str) -> Overrides:
        """Reads the values of --override_kv and --rope_parameters. Raises WrongOptions for a wrong one."""
        return cls(_values(values), _positions(positions))

    def __bool__(self) -> bool:
        return bool(self.values or self.positions)

    def apply(self, metadata: dict[str, Any]) -> None:
        """Replaces the values in the metadata of a file. Raises WrongOptions if they do not fit the file."""
        known = dict(metadata)  # what is looked up in it does not count as used by the network
        architecture = str(self.values.get(ARCHITECTURE, known.get(ARCHITECTURE)))
        for key, value in self.values.items():
            if key not in known and not key.startswith((f"{architecture}.", "tokenizer.", "general.")):
                raise WrongOptions(
                    f"--override_kv: the file has no {key}, and a network of the architecture {architecture} reads none"
                )
            if key in known and (found := _type(known[key])) != _type(value):
                raise WrongOptions(f"--override_kv: {key} is {found} in the file, not {_type(value)}")
            known[key] = value
        if self.positions:
            _scale(known, self.positions)
        metadata.update(known)


NO_OVERRIDES = Overrides()


def _scale(metadata: dict[str, Any], positions: Mapping[str, Any]) -> None:
    """Replaces how positions are scaled. A new factor gives a new context length, as in vLLM.

    Args:
        metadata: The metadata, which is changed.
        positions: The members of --rope_parameters.

    Raises:
        WrongOptions: The network has no RoPE, or the factor does not fit the kind of scaling.
    """
    architecture = str(metadata.get(ARCHITECTURE))
    if not _rotates(metadata, architecture):
        raise WrongOptions(f"--rope_parameters: networks of the architecture {architecture} have no RoPE")
    start = f"{architecture}.rope."
    kind, length = f"{start}scaling.type", f"{architecture}.context_length"
    factor, original = (f"{start}{NAMES[name]}" for name in ("factor", WHOLE))
    before = _number(metadata, factor) or _number(metadata, f"{start}scale_linear") or 1.0
    # In files with a linear scaling, the context is the scaled one.
    stretched = before if metadata.get(kind, "linear") == "linear" else 1.0
    unscaled = int(positions.get(WHOLE) or _number(metadata, original) or _number(metadata, length) / stretched)
    if "rope_type" in positions:
        metadata[kind] = positions["rope_type"]
    for name in positions.keys() & NAMES.keys():
        metadata[f"{start}{NAMES[name]}"] = positions[name]
    scaling = metadata.get(kind, "linear")
    stated = positions.get("factor", before)
    if scaling == "yarn" and stated < 1:
        raise WrongOptions(f"--rope_parameters: the factor of yarn must be at least 1; it is {stated:g}")
    if "attention_factor" in positions and _number(metadata, f"{start}{NAMES[MAY_BE_ZERO]}") < 0:
        metadata[f"{start}{NAMES[MAY_BE_ZERO]}"] = 1.0  # llama.cpp writes -1 for "not stated", also for this factor
    if scaling == "yarn" or positions.get(MAY_BE_ZERO):
        metadata[original] = unscaled  # where scaling begins, by default the whole context
    if "factor" in positions and scaling != "none" and length in metadata:
        metadata[length] = int(unscaled * stated)


def _rotates(metadata: Mapping[str, Any], architecture: str) -> bool:
    """Returns whether the networks of an architecture have RoPE; True for an unknown one, which is refused later."""
    if (encoder := ENCODERS.get(architecture)) is not None:
        return encoder.rotary
    if (row := ARCHITECTURES.get(architecture)) is None:
        return True
    sloped = row.slope and row.sloped_depth in (0, metadata.get(f"{architecture}.block_count"))
    return not (sloped or row.unrotated == 1) and bool(metadata.get(f"{architecture}.attention.head_count"))


def _number(metadata: Mapping[str, Any], key: str) -> float:
    value = metadata.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def _type(value: Any) -> str:
    """Returns the type of a value of the metadata, in the words of --override_kv."""
    if isinstance(value, list | StringArray):
        return "an array"
    return next(name for kind, name in TYPES if isinstance(value, kind))


TYPES = ((bool, "bool"), (int, "int"), (float, "float"), (str, "str"))
"""The types of values with their names, of which the first one that fits counts."""


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


READERS: dict[str, Callable[[str], Value]] = {"int": int, "float": _finite, "bool": _flag, "str": str}


def _values(text: str) -> dict[str, Value]:
    """Parses --override_kv."""
    found: dict[str, Value] = {}
    for quoted, plain in _ENTRY.findall(text):
        if not (entry := quoted.replace('""', '"') or plain):
            continue
        key, equals, rest = entry.partition("=")
        kind, colon, value = rest.partition(":")
        if not (key and equals and colon and kind in READERS):
            raise WrongOptions(f"--override_kv: {entry!r} is not of the form {FORM}")
        if key.startswith(STRUCTURE):
            raise WrongOptions(f"--override_kv: {key} says where the tensors of the file are, and cannot be replaced")
        try:
            found[key] = READERS[kind](value)
        except ValueError:
            raise WrongOptions(f"--override_kv: {value!r} of {key} is not of the type {kind}") from None
    return found


def _positions(text: str) -> dict[str, Any]:
    """Parses --rope_parameters."""
    found = dict(read_object("rope_parameters", text))
    found.update({"rope_type": found.pop("type")} if "type" in found else {})
    for name, value in found.items():
        if name == "rope_type":
            if value not in KINDS:
                raise WrongOptions(f"--rope_parameters: rope_type must be none, linear or yarn; it is {value!r}")
            found[name] = KINDS[value]
        elif name not in NAMES:
            raise WrongOptions(
                f"--rope_parameters has the unknown member {name!r}; known are rope_type, {', '.join(NAMES)}"
            )
        elif not _fits(name, value):
            kind = "whole number" if name == WHOLE else "number"
            least = "of at least 0" if name == MAY_BE_ZERO else "above 0"
            raise WrongOptions(f"--rope_parameters: {name} must be a {kind} {least}; it is {value!r}")
    return {name: int(value) if name == WHOLE else value for name, value in found.items()}


def _fits(name: str, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return (value > 0 or (value == 0 and name == MAY_BE_ZERO)) and (name != WHOLE or value == int(value))
