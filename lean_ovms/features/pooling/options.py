"""The options of pooling models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...config.options import Options, option

TASKS = ("embeddings", "rerank", "classify", "token_classify")
"""The tasks of these models; OVMS has the first two."""
_model = partial(option, group="model")
_engine = partial(option, group="engine")
_limits = partial(option, group="limits")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class PoolingOptions(Options):
    """What models do that compute vectors, scores and classes, and how much a request may ask of them."""

    in_engine = True

    pooling: str = _model(
        "",
        "how an embeddings model makes one vector from those of the tokens; ALL: it keeps them all, for late "
        "interaction scores; empty: as the model's files say",
        choices=("", "CLS", "LAST", "MEAN", "MAX", "MEAN_SQRT_LEN", "WEIGHTED_MEAN", "ALL"),
        tasks=TASKS[:1],
    )
    normalize: str = _model(
        "",
        "whether vectors are scaled to length 1 (L2); empty: as the model's files say, and true if they say nothing",
        choices=("", "true", "false"),
        tasks=TASKS[:1],
    )
    embed_long_inputs: str = _model(
        "error",
        "what happens to an input of embeddings that exceeds the model's context. error: the answer is 400; mean: it "
        "is cut into parts, and their vectors are averaged",
        choices=("error", "mean"),
    )
    truncate: bool = _model(
        False, "cut inputs of embeddings to the model's context, instead of answering 400", tasks=TASKS[:1]
    )
    matryoshka: bool = _model(
        False,
        "accept dimensions in requests for embeddings even if the model's files do not say that its vectors may be cut",
        tasks=TASKS[:1],
    )
    max_position_embeddings: int = _model(
        0, "context length of a reranker in tokens; 0: the model's own", low=0, tasks=("rerank",)
    )
    max_allowed_chunks: int = _model(
        10000,
        "most documents of a rerank request; the pieces of long documents are counted one by one",
        low=1,
        tasks=("rerank",),
    )
    pooling_batch_tokens: int = _engine(
        1024, "most tokens in one batch of a pooling model, padding included", low=16, high=1 << 20, tasks=TASKS
    )
    max_pooling_tokens: int = _limits(
        300_000,
        "most tokens in all inputs of one embeddings, rerank, score or classification request; more: 400",
        low=1,
    )
    max_pooling_inputs: int = _limits(
        2048, "most inputs in one embeddings, score or classification request; more: 400", low=1
    )
