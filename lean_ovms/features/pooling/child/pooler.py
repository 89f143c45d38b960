"""The seam between the task and what computes: a loaded model with its tokenizer. Knows no queue and no records.

A real model is network.py with tokenizer.py; the fake one is fake_pooler.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ....types import Image
from ....types.engine import ModelInfo, Vocabulary
from ..types import PoolingInfo

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Template:
    """Special tokens around inputs, as the model's own tokenizer adds them."""

    single: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """The ids before and after a text."""
    pair: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None = None
    """The ids before the query, between query and document, and after the document; None: pairs are not joined by
    tokens."""
    types: tuple[int, ...] = (0, 0, 0, 0, 0)
    """The token type ids of those five parts of a pair, in their order."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that makes one text of a pair, as Qwen3-Reranker has it."""

    prefix: tuple[int, ...]
    """The ids before it."""
    suffix: tuple[int, ...]
    """The ids behind it."""
    body: str
    """The text, with {instruction}, {query} and {document}."""
    instruction: str
    """The default instruction."""


@dataclass(slots=True, eq=False)
class Batch:
    """Inputs of one forward pass, padded at the right."""

    ids: Array
    """The ids, int64 [B, S]."""
    mask: Array
    """1 for each token, 0 for padding, int64 [B, S]."""
    types: Array
    """The token type ids, int64 [B, S]."""
    per_token: bool
    """Whether there is one output row per token, instead of one per input."""
    images: tuple[Image, ...] = ()
    """The images of the only input."""
    more: dict[str, Array] = field(default_factory=dict)
    """Other inputs of the network, by their names."""


class PoolingVision(Protocol):
    """The way in which a model reads images."""

    token_id: int
    """The token that stands for one image."""

    def text(self, text: str, images: Sequence[Image]) -> str:
        """Returns what is tokenized for a text with tags of images. Raises BadRequest for what cannot be read."""

    def ids(self, tokens: list[int], images: Sequence[Image]) -> list[int]:
        """Returns the ids of such a text with an id for each token of its images. Raises BadRequest."""

    def inputs(self, ids: Array, images: Sequence[Image]) -> dict[str, Array]:
        """Returns what the network takes besides ids, types and mask.

        Args:
            ids: The ids [batch, tokens].
            images: The images of the batch's only input.
        """


class Pooler(Protocol):
    """One loaded model. Only the task calls it, from one thread."""

    info: ModelInfo
    pooling: PoolingInfo
    vocabulary: Vocabulary
    template: Template
    prompt: Prompt | None
    vision: PoolingVision | None

    @property
    def slots(self) -> int:
        """Batches that may be started before one is waited for."""

    def widen(self) -> None:
        """Notes that many texts wait: `slots` may grow."""

    def padded_length(self, needed: int) -> int:
        """Returns the padded length of a text that is computed alone, and that has so many tokens at least."""

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text, without special tokens. Raises BadRequest."""

    def detokenize(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Returns the text of these ids, which are valid."""

    def start(self, batch: Batch, alone: bool) -> None:
        """Begins a forward pass.

        Args:
            batch: The texts.
            alone: Whether no other pass is started before this one was waited for.

        Raises:
            RuntimeError: OpenVINO fails.
        """

    def wait(self) -> tuple[Batch, Array | RuntimeError]:
        """Returns a batch that has been computed, with its output or its error.

        The output is float32, [B, width] or [B, S, width], not normalized and without an activation.
        """
