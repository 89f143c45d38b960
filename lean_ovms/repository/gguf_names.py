"""Names of GGUF files: a split file is several, of which the first stands for all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import TypeVar

PART = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf")
"""The name of a part of a split file, as llama-gguf-split writes it."""
P = TypeVar("P", bound=PurePath)


def parts(path: P) -> list[P]:
    """Returns the paths of all parts of a split file, by the name of the first; of another file just its own."""
    found = PART.fullmatch(path.name)
    if found is None or int(found["part"]) != 1 or not int(found["count"]):
        return [path]
    return [
        path.with_name(f"{found['stem']}-{i:05}-of-{found['count']}.gguf") for i in range(1, int(found["count"]) + 1)
    ]


def absent(path: PurePath) -> str:
    """Returns what is not at a path that should have been a model: its name says which kind was meant."""
    return "no such file" if path.suffix.lower() == ".gguf" else "no such directory"


def models_in(folder: Path) -> list[Path]:
    """Returns the GGUF models of a folder, also of those in it: whole files and first parts."""
    names = (str(file.relative_to(folder)) for pattern in ("*.gguf", "*/*.gguf") for file in folder.glob(pattern))
    return [folder / name for name in whole_or_first(names) if "mmproj" not in name]


def whole_or_first(names: Iterable[str]) -> list[str]:
    """Returns the names of whole files and of first parts, sorted."""
    return [name for name in sorted(names) if (part := PART.fullmatch(name)) is None or int(part["part"]) == 1]


def quantized(names: Iterable[str], quantization: str) -> str:
    """Returns the shortest name of a whole GGUF file or first part with this quantization, such as Q4_K_M; "" if there
    is none."""
    word = re.compile(rf"(.*[-_./])?{re.escape(quantization)}(-\d{{5}}-of-\d{{5}}|/[^/]*)?\.gguf", re.IGNORECASE)
    found = [name for name in whole_or_first(names) if word.fullmatch(name) and "mmproj" not in name]
    return min(found, key=lambda name: (len(name), name), default="")
