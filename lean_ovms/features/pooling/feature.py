"""The manifest of pooling models.

Models are recognized by the rules of OVMS, with two exceptions: an architecture "…Model" is an embeddings model only
without a generation_config.json (GPT2LMHeadModel and ChatGLMModel generate text), and a classifier with labels of its
own, or with more than two labels, is not a reranker.
https://github.com/openvinotoolkit/model_server/blob/main/src/default_task_detector.cpp
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ...config.options import Options, option
from ...manifest import BASES, EVERYWHERE, DemoModel, Feature, Metric, PanelRow, Route, TaskRow

TASKS = ("embeddings", "rerank", "classify", "token_classify")
"""The tasks of these models; OVMS has the first two."""
_model = partial(option, group="model")
_engine = partial(option, group="engine")
_limits = partial(option, group="limits")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class PoolingOptions(Options):
    """The options of models that compute vectors, scores and classes, and limits of their requests."""

    in_engine = True

    pooling: str = _model(
        "",
        "how an embeddings model combines the vectors of the tokens into one; ALL keeps them all, for late "
        "interaction scores; SPLADE makes sparse vectors of a masked language model's logits; if empty, as the "
        "model's files say",
        choices=("", "CLS", "LAST", "MEAN", "MAX", "MEAN_SQRT_LEN", "WEIGHTED_MEAN", "ALL", "SPLADE"),
        tasks=TASKS[:1],
    )
    normalize: str = _model(
        "",
        "whether vectors are scaled to length 1 (L2); if empty, as the model's files say, or true if they say nothing",
        choices=("", "true", "false"),
        tasks=TASKS[:1],
    )
    embed_long_inputs: str = _model(
        "error",
        "what happens to an embeddings input that exceeds the model's context: it is rejected with 400 (error), or "
        "split into parts whose vectors are averaged (mean)",
        choices=("error", "mean"),
    )
    truncate: bool = _model(
        False, "truncate embeddings inputs to the model's context, instead of answering 400", tasks=TASKS[:1]
    )
    matryoshka: bool = _model(
        False,
        "accept dimensions in embeddings requests even if the model's files do not say that its vectors may be "
        "shortened",
        tasks=TASKS[:1],
    )
    max_position_embeddings: int = _model(
        0, "context length of a reranker in tokens; 0 for the model's own", low=0, tasks=("rerank",)
    )
    max_allowed_chunks: int = _model(
        10000,
        "maximum number of documents of a rerank request; each chunk of a long document counts as one",
        low=1,
        tasks=("rerank",),
    )
    pooling_batch_tokens: int = _engine(
        1024,
        "maximum number of tokens in one batch of a pooling model, including padding",
        low=16,
        high=1 << 20,
        tasks=TASKS,
    )
    max_pooling_tokens: int = _limits(
        300_000,
        "maximum number of tokens in all inputs of one embeddings, rerank, score or classification request; more are "
        "rejected with 400",
        low=1,
    )
    max_pooling_inputs: int = _limits(
        2048,
        "maximum number of inputs in one embeddings, score or classification request; more are rejected with 400",
        low=1,
    )


if TYPE_CHECKING:
    from ...util.files import ModelFiles

AMBIGUOUS = ("Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration")
"""Architectures of several tasks: the directory's name decides, and for embeddings the network's inputs."""
EMBEDDINGS = (
    "BertModel", "JinaBertModel", "MPNetModel", "Qwen2Model", "RobertaModel", "T5EncoderModel", "XLMRobertaModel",
)  # fmt: skip
"""Architectures that only embed."""
CHATS = ("InternVLChatModel",)
"""Architectures that are named like those that embed and do not."""
RERANK_LABELS = 2
"""The most labels of a classifier that reranks."""


def _scores(files: ModelFiles) -> bool:
    return any("LogitScore" in kind or "CrossEncoder" in kind for kind in files.modules)


def _classifies(files: ModelFiles) -> bool:
    """Returns whether it is a sequence classifier: its labels have real names, or are too many for a reranker."""
    labels = files.config.get("id2label")
    names = list(labels.values()) if isinstance(labels, dict) else []
    named = any(not re.fullmatch(r"LABEL_\d+", str(name)) for name in names)
    return (
        files.is_of("ForSequenceClassification")
        and not _scores(files)
        and (len(names) > RERANK_LABELS or (named and len(names) > 1))
    )


def _classifies_tokens(files: ModelFiles) -> bool:
    return files.is_of("ForTokenClassification")


def _reranks(files: ModelFiles) -> bool:
    named = not files.modules and _is_named(files, "rerank")
    return named or _scores(files) or files.is_of("ForSequenceClassification")


def _embeds(files: ModelFiles) -> bool:
    def by_suffix(name: str) -> bool:
        return name.endswith("Model") and name not in CHATS and not files.has("generation_config.json")

    return (
        any("Pooling" in kind for kind in files.modules)
        or any(name in EMBEDDINGS or by_suffix(name) for name in files.architectures)
        or (not files.modules and (_is_named(files, "embed") or _is_headless(files)))
    )


NETWORK_HEAD = 1 << 16
"""The bytes at the beginning of a network that have the layers of its inputs."""


def _is_headless(files: ModelFiles) -> bool:
    """Returns whether a possible generator was exported as an encoder: its network has no input beam_idx."""
    if not any(name in AMBIGUOUS for name in files.architectures):
        return False
    from ...repository.model_config import TEXT_MODEL  # late, since every start imports manifests

    try:
        with open(files.path / TEXT_MODEL, "rb") as file:
            head = file.read(NETWORK_HEAD)
    except OSError:
        return False
    return b'"input_ids"' in head and b'"beam_idx"' not in head


def _is_named(files: ModelFiles, word: str) -> bool:
    return any(name in AMBIGUOUS for name in files.architectures) and word in files.path.resolve().name.lower()


SCORING = (
    (("query", "documents"), "/rerank"),
    (("query", "texts"), "/rerank"),
    (("queries", "documents"), "/score"),
    (("queries", "items"), "/score"),
    (("text_1", "text_2"), "/score"),
    (("data_1", "data_2"), "/score"),
)
"""The path of requests for scores by the members of their bodies."""
TOKENS = "lean_ovms_pooling_tokens_total"
PADDED_TOKENS = "lean_ovms_pooling_padded_tokens_total"


_row = partial(TaskRow, model="model:PoolingModel", loader="child.task:load", records="records")

FEATURE = Feature(
    name="pooling",
    summary="computes embeddings, scores and classes of texts and images",
    title="Embeddings, rerank, scores and classes",
    reference="https://docs.vllm.ai/en/stable/serving/online_serving/",
    needs=("chat",),
    options=PoolingOptions,
    flags="flags.txt",
    routes=(
        Route("POST", "/embeddings", "api.embeddings:handle", BASES, model="PoolingModel"),
        Route("POST", "/classify", "api.classify:handle", EVERYWHERE),
        Route("POST", "/pooling", "api.pooling:handle", EVERYWHERE),
        Route("POST", "/rerank", "api.rerank:handle", EVERYWHERE),
        Route("POST", "/v2/rerank", "api.rerank:handle", EVERYWHERE),
        Route("POST", "/reranking", "api.rerank:handle", EVERYWHERE),
        Route("POST", "/score", "api.score:handle", EVERYWHERE),
    ),
    tasks=(
        _row(
            name="classify",
            recognizes=_classifies,
            exported_as="text-classification",
            bodies=(*SCORING, ((), "/classify")),
        ),
        _row(
            name="token_classify",
            recognizes=_classifies_tokens,
            exported_as="token-classification",
            bodies=(((), "/pooling"),),
        ),
        _row(name="rerank", recognizes=_reranks, bodies=SCORING),
        _row(
            name="embeddings",
            recognizes=_embeds,
            exported_as="feature-extraction",
            bodies=(
                *SCORING,
                (("texts",), "/v2/embed"),
                (("task",), "/pooling"),
                ((), "/v1/embeddings"),
                ((), "/pooling"),
            ),
        ),
    ),
    metrics=(
        Metric(TOKENS, "counter", "tokens computed by a pooling model since it started"),
        Metric(PADDED_TOKENS, "counter", "the same with the padding of its batches"),
    ),
    panel=PanelRow(
        view="texts",
        place=1,
        title="Embeddings",
        icon="points",
        tasks=(("embeddings", "Embeddings"), ("rerank", "Rerank")),
    ),
    methods={"embed": "llm:embed", "score": "llm:score", "classify": "llm:classify", "encode": "llm:encode"},
    demos=(DemoModel(name="demo-embed", folder="demo_embed", task="embeddings"),),
)
