"""Models that consist of a single file, or of several parts represented by the first: the interface for the core.

Features declare the formats of such files in their manifests. A format is recognized by the ending of the file name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Protocol, TypeVar

from ..composition import compose
from ..manifest import named
from ..types import Json

PART = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.[^.]+)")
"""Matches the name of a part of a split file, as llama-gguf-split and transformers write it."""
HALF = re.compile(r"(?<!b)f16", re.IGNORECASE)
"""Matches F16, but not BF16, in the name of a file whose numbers have 16 bits."""
P = TypeVar("P", bound=PurePath)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDefaults:
    """The defaults for requests in a model file."""

    sampling: dict[str, Any] = field(default_factory=dict)
    """The sampling defaults by the names of the request fields."""
    chat_template: str = ""
    """The chat template; empty if there is none."""
    tool_template: str = ""
    """The template for requests with tools; empty if there is no separate one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePooling:
    """The pooling settings of a model file."""

    mode: str
    """The pooling mode, such as MEAN; empty if the file does not say."""
    tokens: dict[str, str]
    """The texts of special tokens, by their names in tokenizer_config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWeights:
    """A summary of the weights of a file, for people."""

    parameters: int
    """The number of parameters."""
    precision: str
    """The type of most parameters, as named in such files; empty if unknown."""


class ModelFile(Protocol):
    """A model that consists of a single file. The file is not read before a method is called."""

    def config(self) -> Json:
        """Returns the config.json fields that `model_config` reads. Raises StartError if the file cannot be served."""

    def task(self) -> str:
        """Returns the name of the model's task; "" if the file cannot be read."""

    def defaults(self) -> FileDefaults:
        """Returns the file's defaults for requests; empty if it cannot be read, which its engine reports."""

    def pooling(self) -> FilePooling:
        """Returns the pooling settings of the model. Raises StartError."""

    def weights(self) -> FileWeights:
        """Returns a summary of the weights. Raises StartError."""

    def only_paged(self) -> str:
        """Returns the reason why openvino_genai cannot load the file; "" if it can. Raises StartError."""

    def logits_width(self) -> int:
        """Returns the number of logits per token, including padding. Raises StartError."""

    def user_defined(self) -> frozenset[int]:
        """Returns the ids of user-defined tokens: visible texts that are always one token. Raises StartError."""


_reading: ContextVar[tuple[Any, dict[Path, ModelFile] | None]] = ContextVar("reading", default=(None, None))


@contextmanager
def reading_once(config: Any = None) -> Iterator[None]:
    """Caches the content of each file inside the `with` block. The options of its model may change what it says."""
    token = _reading.set((config or _reading.get()[0], {}))
    try:
        yield
    finally:
        _reading.reset(token)


def changes(config: Any, path: PurePath) -> dict[str, Any]:
    """Returns the options of a model that change what its file says, for keys of what depends on the file."""
    row = compose().format_of(path)
    return {} if row is None else {name: value for name in row.options if (value := config.given(name))}


def is_one(path: PurePath) -> bool:
    """Returns whether a path names a model file, by its ending."""
    return compose().format_of(path) is not None


def of(path: Path) -> ModelFile | None:
    """Returns the model in a file; None for a directory, or a file of an unknown format."""
    config, known = _reading.get()
    if known is not None and path in known:
        return known[path]
    if (row := compose().format_of(path)) is None:
        return None
    found: ModelFile = named(row.package, row.file)(path, config)
    if known is not None:
        known[path] = found
    return found


def _part(name: str) -> re.Match[str] | None:
    """Matches the name of a part of a model file with PART; returns None for any other name."""
    return PART.fullmatch(name) if is_one(PurePath(name)) else None


def parts(path: P) -> list[P]:
    """Returns the paths of all parts of a split file, given the first one; the path itself for any other file."""
    found = _part(path.name)
    if found is None or int(found["part"]) != 1 or not int(found["count"]):
        return [path]
    stem, count, suffix = found["stem"], found["count"], found["suffix"]
    return [path.with_name(f"{stem}-{i:05}-of-{count}{suffix}") for i in range(1, int(count) + 1)]


def absent(path: PurePath) -> str:
    """Returns the message for a missing model. The name of the path shows whether a directory or a file was meant."""
    return "no such file" if is_one(PurePath(path.name.lower())) else "no such directory"


def models_in(folder: Path) -> list[Path]:
    """Returns the model files in a folder and its subfolders: whole files, and first parts of split files."""
    found = (file for row in compose().formats for below in ("", "*/") for file in folder.glob(f"{below}*{row.suffix}"))
    return [folder / name for name in models_among(str(file.relative_to(folder)) for file in found)]


def models_among(names: Iterable[str]) -> list[str]:
    """Returns the names of whole model files and of first parts, sorted."""
    words = [row.vision_option for row in compose().formats if row.vision_option]
    return [name for name in whole_or_first(names) if not any(word in name for word in words)]


def vision_files(names: Iterable[str], model: str) -> list[str]:
    """Returns the vision files, of all names with folders, that may belong to a model file, the likeliest first.

    They are in the model file's folder, or in one above. The nearest come first, and among these the ones in 16 bits.
    """
    row = compose().format_of(PurePath(model))
    if row is None or not row.vision_option:
        return []
    found = [PurePath(name) for name in names if name.endswith(row.suffix)]
    near = [path for path in found if row.vision_option in path.name and PurePath(model).is_relative_to(path.parent)]
    near.sort(key=lambda path: (-len(path.parts), not HALF.search(path.name), str(path)))
    return [path.as_posix() for path in near]


def whole_or_first(names: Iterable[str]) -> list[str]:
    """Returns the names of whole files and of first parts among model files, sorted."""
    whole = (name for name in sorted(names) if is_one(PurePath(name)))
    return [name for name in whole if (part := _part(name)) is None or int(part["part"]) == 1]


def quantized(names: Iterable[str], quantization: str) -> str:
    """Returns the shortest name of a whole file or first part with this quantization, such as Q4_K_M; or ""."""
    word = re.compile(rf"(.*[-_./])?{re.escape(quantization)}(-\d{{5}}-of-\d{{5}}|/[^/]*)?\.[^.]+", re.IGNORECASE)
    found = [name for name in models_among(names) if word.fullmatch(name)]
    return min(found, key=lambda name: (len(name), name), default="")


def usual(names: Iterable[str]) -> str:
    """Returns the name of a file with the quantization that its format prefers, or else the first; "" without any."""
    found = models_among(names)
    words = (row.usual for row in compose().formats if row.usual)
    return next((name for word in words if (name := quantized(found, word))), next(iter(found), ""))
