"""LoRA adapters by name: reading --lora_modules, and looking into an adapter before an engine is started for it.

An adapter is a .safetensors file, or a directory as peft writes it (adapter_model.safetensors, adapter_config.json).
openvino-genai 2026.4.1 multiplies what an adapter adds by alpha alone: it reads no adapter_config.json, and passes over
tensors that the model has no layer for, so that an adapter of another model changes nothing and nobody is told. Both
are looked after here. Knows no engine.
"""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import StartError

FILE, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."
"""How peft begins the names of tensors; GenAI finds no others."""
MOST_HEADER_BYTES = 64 << 20
_LAYER = re.compile(rf"{re.escape(PREFIX)}(.+)\.lora_[AB](?:\.\w+)?\.weight")
_KNOWN = re.compile(r'"(?:self|__module)\.([\w.]+?)(?:\.weight)?[/"]')


@dataclass(frozen=True, slots=True)
class Module:
    """One adapter. alpha: what it adds is multiplied by that; None: as its adapter_config.json says, else 1."""

    name: str
    path: str
    alpha: float | None = None


def parse(text: str) -> list[Module]:
    """name=path[,alpha] several times, with blanks between, or vLLM's JSON objects. Raises StartError."""
    text = text.strip()
    modules = _from_json(text) if text.startswith(("{", "[")) else [_module(part) for part in text.split()]
    names = [module.name for module in modules]
    for name in names:
        if names.count(name) > 1:
            raise _wrong(f"{name!r} is there twice")
    return modules


def written(module: Module) -> str:
    """A module as `parse` reads it."""
    return json.dumps({"name": module.name, "path": module.path, "alpha": module.alpha})


def weights(path: Path) -> Path:
    """The file with the tensors. Raises StartError when there is none."""
    folder = os.path.isdir(path)
    file = path / FILE if folder else path
    if not os.path.isfile(file):
        raise _wrong(f"there is no adapter at {path}" + (f" ({FILE} is missing)" if folder else ""))
    if file.suffix != ".safetensors":
        raise _wrong(f"{file} is not a .safetensors file")
    return file


def scale(module: Module) -> float:
    """What to multiply with: alpha if it is given, else peft's lora_alpha by rank. Raises StartError."""
    if module.alpha is not None:
        return module.alpha
    settings = weights(Path(module.path)).parent / SETTINGS
    if not settings.is_file():
        return 1.0
    try:
        found = json.loads(settings.read_bytes())
        rank = float(found["r"])
        return float(found["lora_alpha"]) / (math.sqrt(rank) if found.get("use_rslora") else rank)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError, RecursionError):
        raise _wrong(f"{settings} does not tell lora_alpha and r") from None


def check(module: Module, model_dir: Path) -> None:
    """Raises StartError for an adapter that is not there, is broken, or has nothing for this model."""
    file = weights(Path(module.path))
    scale(module)
    layers = {found[1] for name in tensors(file) if (found := _LAYER.fullmatch(name))}
    if not layers:
        raise _wrong(f"{file} has no tensors named {PREFIX}<layer>.lora_A.weight")
    model = model_dir / "openvino_model.xml"
    if model.is_file() and not layers & set(_KNOWN.findall(model.read_text("utf-8", "replace"))):
        raise _wrong(f"{file} belongs to another model: it adapts {min(layers)}, which this one has not")


def tensors(file: Path) -> list[str]:
    """The names in a .safetensors file, whose header is held against its size. Raises StartError."""
    try:
        with file.open("rb") as data:
            whole = file.stat().st_size
            size = int.from_bytes(data.read(8), "little")
            if not 2 <= size <= min(MOST_HEADER_BYTES, whole - 8):
                raise ValueError("its header is longer than the file")
            header = json.loads(data.read(size))
        ends = [row["data_offsets"][1] for name, row in header.items() if name != "__metadata__"]
        if max(ends, default=0) > whole - 8 - size:
            raise ValueError("it ends before its tensors do")
    except OSError as error:
        raise _wrong(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise _wrong(f"{file} is not a whole .safetensors file: {error}") from None
    return [name for name in header if name != "__metadata__"]


def _module(part: str) -> Module:
    name, equals, rest = part.partition("=")
    if not (name and equals and rest):
        raise _wrong(f"{part!r} is not of the form name=path[,alpha]")
    path, comma, number = rest.rpartition(",")
    if comma and (alpha := _number(number)) is not None:
        return Module(name, path, alpha)
    return Module(name, rest)


def _from_json(text: str) -> list[Module]:
    decoder, found = json.JSONDecoder(), list[Any]()
    try:
        while text:
            one, end = decoder.raw_decode(text)
            found += one if isinstance(one, list) else [one]
            text = text[end:].strip()
    except (ValueError, RecursionError):
        raise _wrong("it is not valid JSON") from None
    return [module(one) for one in found]


def module(one: Any) -> Module:
    """From {"name", "path", "alpha"}. Raises StartError."""
    row = one if isinstance(one, dict) else {}
    name, path, alpha = row.get("name"), row.get("path"), row.get("alpha")
    number = None if alpha is None else _number(alpha)
    if not (isinstance(name, str) and name and isinstance(path, str) and path) or (
        alpha is not None and number is None
    ):
        raise _wrong("an adapter is an object with the texts name and path, and perhaps the number alpha")
    return Module(str(name), str(path), number)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _wrong(text: str) -> StartError:
    return StartError(f"--lora_modules: {text}")
