"""The dataclasses of pooling models (embeddings, rerank, score, classification).

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
SPARSE = "sparse"
KINDS = (EMBED, SCORE, CLASSIFY, TOKEN_CLASSIFY, TOKEN_EMBED, SPARSE)
"""The kind of result that a pooling model computes."""
ONLY_PER_TOKEN = (TOKEN_CLASSIFY, TOKEN_EMBED)
VECTORS = (EMBED, TOKEN_EMBED, SPARSE)

AND = "+"
"""Joins the pooling modes of a model whose vectors are concatenations of several pooled ones, as in CLS+MEAN."""
ASSUMED_PROMPT = "Qwen3-Reranker's prompt, which is not that of this model unless it was trained with it"
"""Describes the prompt of a language model that reranks and whose own prompt is not known."""
MOST_NUMBERS = 1 << 25
"""The most numbers in all vectors of tokens, or sparse vectors, of one request: 128 MiB, or 400 MB as JSON."""
INTEGERS = ("int8", "uint8", "binary", "ubinary")
"""The types of whole numbers to which vectors are quantized."""
BITS = ("binary", "ubinary")
"""The types of INTEGERS of which each byte has eight values of a vector."""
POOLED, PER_TOKEN = "pooled", "tokens"
"""Values of PoolingParams.output."""

TextOrTokens = str | list[int]
"""A text that the model's tokenizer encodes, or token ids."""
Pair = tuple[TextOrTokens, TextOrTokens]
"""A query and a document, without special tokens; the engine joins them by the model's own template."""


@dataclass(frozen=True, slots=True)
class TextWithImages:
    """A text with images, whose places in the text are marked by tags (IMAGE_TAG) with their numbers from 0."""

    text: str
    """The text with the tags."""
    images: tuple[Image, ...]
    """The images, in the order of the tags' numbers."""


PoolingInput = TextOrTokens | Pair | TextWithImages
"""One input of a request. A text of a model of kind "score" is a whole prompt."""
IN_TEMPLATE, IN_PROMPT = "tokens", "prompt"
"""Values of PoolingInfo.pair: the tokenizer's template joins a query and a document, or a text prompt such as
Qwen3-Reranker's does."""
IMAGES_ALONE, IMAGES_IN_TEXT = "alone", "in_text"
"""Values of PoolingInfo.images: an input is a text or an image, as CLIP's; or a text with images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingInfo:
    """The properties of a loaded pooling model, and how they were found."""

    kind: str
    """"embed": vectors, pooled or one per token; "score": one number for a text or a pair (rerank, cross-encoder);
    "classify": a number per label; "token_classify": a number per label and token; "token_embed": a vector per token,
    with scores by late interaction (ColBERT); "sparse": a vector with a weight for each token of the vocabulary
    (SPLADE)."""
    dimensions: int
    """The length of a vector, or the number of labels (1 for a score)."""
    window: int
    """The most tokens of an input, special tokens included."""
    labels: list[str] = field(default_factory=list)
    """The names of the labels, by index; [] if the model has none."""
    activation: str = ""
    """The activation function of scores and classes: "sigmoid", "softmax" or "none"; "" for vectors."""
    outputs: int = 1
    """The number of the network's own outputs, from which a score is computed (of 2, the second counts)."""
    pooling: str = ""
    """The pooling mode: CLS, LAST, MEAN, MAX, MEAN_SQRT_LEN, WEIGHTED_MEAN, several of these joined by AND, MODEL (the
    network pools itself), ALL (a vector per token), SPLADE, or "" for scores and classes."""
    pooling_source: str = ""
    """The source that decided the pooling mode, as a text for people."""
    pooling_assumed: bool = False
    """Whether nothing decided the pooling mode, so that it is only assumed."""
    normalize: bool = False
    """Whether vectors are L2-normalized by default."""
    matryoshka: bool = False
    """Whether requests may set the number of dimensions."""
    matryoshka_dimensions: list[int] = field(default_factory=list)
    """The only numbers of dimensions that requests may set; [] for any."""
    prompts: dict[str, str] = field(default_factory=dict)
    """The texts that can be put before an input by name, from sentence-transformers' files or task_instructions."""
    has_token_vectors: bool = True
    """Whether a model for embeddings also computes a vector for each token."""
    pools_prompts: bool = True
    """Whether the tokens of a prompt count in the pooled vector like those of the text."""
    lower_case: bool = False
    """Whether texts are converted to lower case before they are tokenized."""
    special_single: int = 0
    """The number of special tokens that one text gets."""
    special_pair: int = 0
    """The number of special tokens that a pair gets."""
    prompt_assumed: bool = False
    """Whether nothing decided the text prompt of pairs, so that it is only assumed."""
    pair: str = ""
    """How a pair becomes one input: IN_TEMPLATE, IN_PROMPT, or "" if the model takes no pairs."""
    images: str = ""
    """IMAGES_ALONE, IMAGES_IN_TEXT, or "" if the model reads text only."""


@dataclass(slots=True, kw_only=True)
class PoolingParams:
    """The parameters with which the inputs of one request are encoded. Defaults are filled in and values are validated.

    An instance is never changed. The class is not frozen, since that would take four times as long to build.
    """

    output: str = POOLED
    """POOLED: one row per input; PER_TOKEN: one row per token, which models of the kind "embed" also have, and those of
    the kinds "token_classify" and "token_embed" only."""
    dimensions: int | None = None
    """The number of dimensions to which a vector is cut before it is normalized; None if it is not cut."""
    normalize: bool | None = None
    """Whether vectors are normalized; None for the model's default."""
    activation: bool = True
    """Whether the activation function is applied to scores and classes; otherwise they are logits."""
    truncate: int | None = None
    """The number of tokens, special tokens included, to which an input is truncated; -1 for the size of the window.

    If it is None, an input that does not fit the window is an error.
    """
    truncation_side: str = "right"
    """The end at which tokens are dropped, "left" or "right"."""
    add_special_tokens: bool = True
    """Whether texts and pairs get special tokens; token ids of a single input never get any."""
    priority: int = 0
    """The priority of the request; lower values are computed first."""
    instruction: str = ""
    """The instruction in the prompt of a pair; "" for the model's default instruction."""
    unpooled: str = ""
    """The prompt with which every text begins, and whose tokens do not count in a pooled vector; "" if none."""


@dataclass(slots=True)
class PooledOutput:
    """The result of one input."""

    data: bytes
    """The numbers, little-endian float32 [rows, width]."""
    rows: int
    """The number of rows."""
    width: int
    """The length of a row."""
    tokens: int
    """The number of the input's tokens after truncation, special tokens included."""

    @property
    def values(self) -> list[float]:
        """All numbers in one list."""
        return array("f", self.data).tolist()
