"""The dataclasses of pooling models (embeddings, rerank, score, classification); lean_ovms/types has those of others.

    api --PoolingInput, PoolingParams--> model.py --> engine
    api <--------- PooledOutput -------- model.py <-- engine

This module imports nothing of the package but lean_ovms/types, and has no behaviour beyond trivial properties.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from ...types import Image

EMBED = "embed"
SCORE = "score"
CLASSIFY = "classify"
TOKEN_CLASSIFY = "token_classify"  # noqa: S105 - no password
TOKEN_EMBED = "token_embed"  # noqa: S105 - no password
KINDS = (EMBED, SCORE, CLASSIFY, TOKEN_CLASSIFY, TOKEN_EMBED)
"""What a pooling model computes, see PoolingInfo.kind."""
ONLY_PER_TOKEN = (TOKEN_CLASSIFY, TOKEN_EMBED)
VECTORS = (EMBED, TOKEN_EMBED)

POOLED, PER_TOKEN = "pooled", "tokens"
"""Values of PoolingParams.output."""

TextOrTokens = str | list[int]
"""A text that the model's tokenizer encodes, or token ids."""
Pair = tuple[TextOrTokens, TextOrTokens]
"""A query and a document, without special tokens; the engine joins them by the model's own template."""


@dataclass(frozen=True, slots=True)
class TextWithImages:
    """A text in which the tags types.IMAGE_TAG stand for its images, by their numbers from 0."""

    text: str
    images: tuple[Image, ...]


PoolingInput = TextOrTokens | Pair | TextWithImages
"""One input of a request. A text of a model of kind "score" is a whole prompt."""
IMAGES_ALONE, IMAGES_IN_TEXT = "alone", "in_text"
"""Values of PoolingInfo.images: an input is a text or an image, as CLIP's; or a text with images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingInfo:
    """The properties of a loaded pooling model, and how they were found."""

    kind: str
    """"embed": vectors, pooled or one per token; "score": one number for a text or a pair (rerank, cross-encoder);
    "classify": a number per label; "token_classify": a number per label and token; "token_embed": a vector per token,
    and a score by late interaction (ColBERT)."""
    dimensions: int
    """The length of a vector, or the number of labels (1 for a score)."""
    window: int
    """The most tokens of an input, special tokens included."""
    labels: list[str] = field(default_factory=list)
    """The names of its labels, by index; [] if it has none."""
    activation: str = ""
    """What is applied to scores and classes: "sigmoid", "softmax" or "none"; empty for vectors."""
    outputs: int = 1
    """The number of the network's own outputs before a score is made of them (2: softmax or sigmoid of the second)."""
    pooling: str = ""
    """CLS, LAST, MEAN, MAX, MEAN_SQRT_LEN, WEIGHTED_MEAN, MODEL (in the network), ALL (a vector per token), or empty:
    the model does not pool here."""
    pooling_source: str = ""
    """What decided that, for people."""
    pooling_assumed: bool = False
    """Whether nothing decided it, so that it is an assumption."""
    normalize: bool = False
    """Whether vectors are L2-normalized by default."""
    matryoshka: bool = False
    """Whether requests may set the number of dimensions."""
    matryoshka_dimensions: list[int] = field(default_factory=list)
    """The only numbers that they may set; []: any."""
    prompts: dict[str, str] = field(default_factory=dict)
    """Texts that go before an input, by their names, of sentence-transformers or task_instructions."""
    lower_case: bool = False
    """Whether texts are lowered first."""
    special_single: int = 0
    """The number of special tokens that one text gets."""
    special_pair: int = 0
    """The number of special tokens that a pair gets."""
    pair: str = ""
    """How a pair becomes one input: "tokens" (the tokenizer's template), "prompt" (a text prompt, such as
    Qwen3-Reranker's), or empty: not at all."""
    images: str = ""
    """IMAGES_ALONE, IMAGES_IN_TEXT, or empty: the model reads text only."""


@dataclass(slots=True, kw_only=True)
class PoolingParams:
    """The parameters with which the inputs of one request are encoded. Complete and in range: defaults are filled in,
    values are validated.

    Not changed once it is built; frozen it would take four times as long to build.
    """

    output: str = POOLED
    """POOLED: one row per input; PER_TOKEN: one row per token, for the kinds "embed", "token_classify" and
    "token_embed" (of these two the only one)."""
    dimensions: int | None = None
    """How many numbers at the beginning of a vector are taken, before it is normalized; None: all."""
    normalize: bool | None = None
    """Whether vectors are normalized; None: the model's default."""
    activation: bool = True
    """Whether scores and classes get their activation; if not, they are logits."""
    truncate: int | None = None
    """The most tokens of an input, special tokens included, which are kept; -1: those of the window; None: a longer
    input is an error. Of a pair only the document is cut."""
    truncation_side: str = "right"
    """The end that is dropped, "left" or "right"."""
    add_special_tokens: bool = True
    """Whether texts and pairs get special tokens; token ids of a single input never get any."""
    priority: int = 0
    """The lower one is sooner."""
    instruction: str = ""
    """The instruction of a pair that becomes a prompt; empty: the model's own."""


@dataclass(slots=True)
class PooledOutput:
    """The result of one input."""

    data: bytes
    """rows * width float32, little-endian, row by row."""
    rows: int
    """The number of rows."""
    width: int
    """The numbers of a row."""
    tokens: int
    """The tokens of the input, special ones included, after truncation."""

    @property
    def values(self) -> list[float]:
        """All numbers in one list."""
        return array("f", self.data).tolist()
