"""Models that are one file, or several of which the first stands for all: what the core asks of them.

The forms of such files are rows of the features' manifests, and known by the ends of their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..composition import compose
from ..manifest import named
from ..types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDefaults:
    """What a file says of requests."""

    sampling: dict[str, Any] = field(default_factory=dict)
    """Defaults of sampling by the names of request fields."""
    chat_template: str = ""
    """The chat template; empty: there is none."""
    tool_template: str = ""
    """The template of requests with tools; empty: there is none of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePooling:
    """How the model of a file pools."""

    mode: str
    """The mode, such as MEAN; empty: the file does not say."""
    tokens: dict[str, str]
    """The texts of its special tokens, by their names in tokenizer_config.json."""


class ModelFile(Protocol):
    """A model that is one file. Nothing of it is read before a method is called."""

    def config(self) -> Json:
        """Returns the fields of a config.json that `model_config` reads. Raises StartError if it cannot be served."""

    def task(self) -> str:
        """Returns the name of the model's task; "" if the file cannot be read."""

    def defaults(self) -> FileDefaults:
        """Returns what the file says of requests; of one that cannot be read its engine says why."""

    def pooling(self) -> FilePooling:
        """Returns how the model pools. Raises StartError."""

    def tested(self) -> bool:
        """Returns whether the paged engine is tested with models of this architecture. Raises StartError."""

    def only_paged(self) -> str:
        """Returns why openvino_genai cannot load the file; "" if it can. Raises StartError."""

    def logits_width(self) -> int:
        """Returns the number of logits of a token, padding included. Raises StartError."""

    def user_defined(self) -> frozenset[int]:
        """Returns the ids of tokens that are one token each, and visible text. Raises StartError."""


_known: ContextVar[dict[Path, ModelFile] | None] = ContextVar("known", default=None)


@contextmanager
def reading_once() -> Iterator[None]:
    """Within it, what is read of each file is read once: while a model is loaded, its file does not change."""
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def is_one(path: Path) -> bool:
    """Returns whether a path is that of such a file, by its name."""
    return compose().format_of(path) is not None


def of(path: Path) -> ModelFile | None:
    """Returns the model that a file is; None: it is a directory, or a file of an unknown form."""
    known = _known.get()
    if known is not None and path in known:
        return known[path]
    row = compose().format_of(path)
    if row is None:
        return None
    found: ModelFile = named(row.package, row.file)(path)
    if known is not None:
        known[path] = found
    return found
