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
    """What a loaded pooling model computes, and how that was decided.

    kind: "embed": vectors, pooled or one per token; "score": one number for a text or a pair (rerank, cross-encoder);
    "classify": a number per label; "token_classify": a number per label and token; "token_embed": a vector per token,
    and a score by late interaction (ColBERT).
    dimensions: of a vector, or the number of labels (1 for a score). window: most tokens of an input, special tokens
    included. labels: names by index, [] if the model has none. problem_type: Hugging Face's, or "".
    activation: of scores and classes: "sigmoid", "softmax" or "none"; "" for vectors.
    outputs: number of the network's own outputs before a score is made of them (2: softmax or sigmoid of the second).
    pooling: CLS, LAST, MEAN, MAX, MEAN_SQRT_LEN, WEIGHTED_MEAN, MODEL (in the network), ALL (a vector per
    token) or "" (not pooled here).
    pooling_source: what decided that, for people. pooling_assumed: nothing did: it is an assumption.
    normalize: vectors are L2-normalized by default. matryoshka: requests may set any number of dimensions;
    matryoshka_dimensions: only these, [] for any. prompts: texts by name that go before an input, of
    sentence-transformers or task_instructions. lower_case: texts are lowered first.
    special_single, special_pair: number of special tokens that one text or a pair gets. pair: how a pair becomes one
    input: "tokens" (the tokenizer's template), "prompt" (a text prompt, such as Qwen3-Reranker's), or "" (not at all).
    images: IMAGES_ALONE, IMAGES_IN_TEXT, or "": it reads text only.
    """

    kind: str
    dimensions: int
    window: int
    labels: list[str] = field(default_factory=list)
    problem_type: str = ""
    activation: str = ""
    outputs: int = 1
    pooling: str = ""
    pooling_source: str = ""
    pooling_assumed: bool = False
    normalize: bool = False
    matryoshka: bool = False
    matryoshka_dimensions: list[int] = field(default_factory=list)
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str = ""
    lower_case: bool = False
    special_single: int = 0
    special_pair: int = 0
    pair: str = ""
    images: str = ""


@dataclass(slots=True, kw_only=True)
class PoolingParams:
    """How the inputs of one request are encoded. Complete and in range: defaults are filled in, values are validated.
    Not changed once it is built; frozen it would take four times as long to build.

    output: POOLED: one row per input; PER_TOKEN: one row per token, for kinds "embed", "token_classify" and
    "token_embed" (of these two the only one). dimensions: the first of a vector, before it is normalized; None: all.
    normalize: of vectors; None: the model's default. activation: False: logits; of scores and classes.
    truncate: most tokens of an input, -1: the window, None: a longer input is an error. Special tokens are kept. Of a
    pair only the document is cut. truncation_side: "right" drops the end, "left" the beginning.
    add_special_tokens: of texts and pairs; token ids of a single input never get any. priority: lower is sooner.
    instruction: of a pair that becomes a prompt; "": the model's own.
    """

    output: str = POOLED
    dimensions: int | None = None
    normalize: bool | None = None
    activation: bool = True
    truncate: int | None = None
    truncation_side: str = "right"
    add_special_tokens: bool = True
    priority: int = 0
    instruction: str = ""


@dataclass(slots=True)
class PooledOutput:
    """The result of one input. data: rows * width float32, little-endian, row by row. tokens: of the input, special
    ones included, after truncation."""

    data: bytes
    rows: int
    width: int
    tokens: int

    @property
    def values(self) -> list[float]:
        """All numbers in one list."""
        return array("f", self.data).tolist()
