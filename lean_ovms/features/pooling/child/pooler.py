"""The interface between the task and a loaded pooling model, real (model.py) or fake (fake_pooler.py)."""

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
    """The special tokens around inputs, as the model's own tokenizer adds them."""

    single: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """The ids before and after a text."""
    pair: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None = None
    """The ids before the query, between query and document, and after the document; None if it takes no pairs."""
    types: tuple[int, ...] = (0, 0, 0, 0, 0)
    """The token type ids of the five parts of a pair: before, query, between, document, after."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that turns a pair into one text, as for Qwen3-Reranker."""

    prefix: tuple[int, ...]
    """The ids before the text."""
    suffix: tuple[int, ...]
    """The ids after the text."""
    body: str
    """The text, with the placeholders {query} and {document}."""
    instructed: str
    """The text for a request with an instruction, with a further placeholder {instruction}; "" if it takes none."""


@dataclass(slots=True, eq=False)
class Batch:
    """The inputs of one forward pass, padded at the right."""

    ids: Array
    """The ids, int64 [B, S]."""
    mask: Array
    """1 for each token, 0 for padding, int64 [B, S]."""
    types: Array
    """The token type ids, int64 [B, S]."""
    per_token: bool
    """Whether there is one output row per token, instead of one per input."""
    images: tuple[Image, ...] = ()
    """The images of an input with images, which is the only one of its batch."""
    pooled: Array | None = None
    """1 for each token that counts in a pooled vector, int64 [B, S]; None if all tokens do."""
    more: dict[str, Array] = field(default_factory=dict)
    """Further inputs of the network, by their names."""


class PoolingVision(Protocol):
    """Prepares inputs with images for a model that reads them."""

    token_id: int
    """The token that stands for one image."""

    def text(self, text: str, images: Sequence[Image]) -> str:
        """Returns the text to tokenize for a text with image tags. Raises BadRequest if an image cannot be read."""

    def ids(self, tokens: list[int], images: Sequence[Image]) -> list[int]:
        """Returns the ids of a text with an id for each token of its images. Raises BadRequest."""

    def inputs(self, ids: Array, images: Sequence[Image]) -> dict[str, Array]:
        """Returns the network's inputs besides ids [batch, tokens], types and mask.

        The images are those of the batch's only input.
        """


class Pooler(Protocol):
    """A loaded pooling model, used by a single thread."""

    info: ModelInfo
    pooling: PoolingInfo
    vocabulary: Vocabulary
    template: Template
    prompt: Prompt | None
    vision: PoolingVision | None

    @property
    def slots(self) -> int:
        """The number of batches that may run at once."""

    def widen(self) -> None:
        """Notes that many texts wait, after which `slots` may grow."""

    def padded_length(self, needed: int) -> int:
        """Returns the padded length of a text that is computed alone and has `needed` tokens."""

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text, without special tokens. Raises BadRequest."""

    def detokenize(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Returns the text of the ids, which must be valid."""

    def start(self, batch: Batch, alone: bool) -> None:
        """Begins a forward pass of a batch; `alone` if no other one runs at the same time. Raises RuntimeError."""

    def wait(self) -> tuple[Batch, Array | RuntimeError]:
        """Waits until a batch has been computed, and returns it with its output or its error.

        The output is float32, [B, width] or [B, S, width], not normalized and without an activation function.
        """
