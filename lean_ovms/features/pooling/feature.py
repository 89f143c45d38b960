"""The manifest of pooling models.

Their rules are OVMS's, except that "…Model" counts as an embeddings model only without a generation_config.json
(GPT2LMHeadModel and ChatGLMModel generate text), and that a classifier with labels of its own, or with more than two,
is no reranker. https://github.com/openvinotoolkit/model_server/blob/main/src/default_task_detector.cpp
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from ...errors import StartError
from ...manifest import BASES, EVERYWHERE, DemoModel, Feature, GraphOption, GraphRow, Metric, Route, TaskRow
from .options import PoolingOptions

if TYPE_CHECKING:
    from ...model_files import ModelFiles

AMBIGUOUS = ("Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration")
"""Architectures of several tasks: the directory's name decides, and for embeddings the network's inputs."""
EMBEDDINGS = (
    "BertModel", "JinaBertModel", "MPNetModel", "Qwen2Model", "RobertaModel", "T5EncoderModel", "XLMRobertaModel",
)  # fmt: skip
"""Architectures that only embed."""
CHATS = ("InternVLChatModel",)
"""Architectures that are named like those that embed and do not."""
RERANK_LABELS = 2
"""A classifier of more labels does not rerank."""


def _scores(files: ModelFiles) -> bool:
    return any("LogitScore" in kind or "CrossEncoder" in kind for kind in files.modules)


def _classifies(files: ModelFiles) -> bool:
    """Returns whether the model is a sequence classifier with labels that mean something, or too many for a score."""
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


def _is_headless(files: ModelFiles) -> bool:
    """Returns whether an ambiguous model was exported without what generates text: the network takes no beam_idx."""
    if not any(name in AMBIGUOUS for name in files.architectures):
        return False
    head = files.network_head()
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
"""Where bodies with these members go that ask for scores."""
MODES = ("CLS", "LAST", "MEAN")
"""The ways of pooling that graphs have."""
TOKENS = "lean_ovms_pooling_tokens_total"
PADDED_TOKENS = "lean_ovms_pooling_padded_tokens_total"


def _mode_to_graph(mode: str) -> str:
    if mode not in MODES:
        raise StartError(f"--pooling {mode} cannot be written: Only CLS, LAST and MEAN pooling modes are supported")
    return mode


_row = partial(TaskRow, model="model:PoolingModel", loader="child.task:load", records="records")

FEATURE = Feature(
    name="pooling",
    summary="makes vectors, scores and classes of texts and images",
    title="Embeddings, rerank, scores and classes",
    reference="https://docs.vllm.ai/en/stable/serving/online_serving/",
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
        _row(
            name="rerank",
            recognizes=_reranks,
            bodies=SCORING,
            graph=GraphRow(
                calculators=("RerankCalculatorOV", "RerankCalculator"),
                message="RerankCalculatorOVOptions",
                messages={
                    "RerankCalculatorOVOptions": "!string models_path, uint64 max_allowed_chunks, "
                    "uint64 max_position_embeddings, string target_device, string plugin_config",
                },
                node="Rerank",
                packets=("RERANK_NODE_RESOURCES:rerank_servable",),
                http=False,
            ),
        ),
        _row(
            name="embeddings",
            recognizes=_embeds,
            exported_as="feature-extraction",
            bodies=(*SCORING, (("texts",), "/v2/embed"), (("task",), "/pooling"), ((), "/v1/embeddings")),
            graph=GraphRow(
                calculators=("EmbeddingsCalculatorOV", "EmbeddingsCalculator"),
                message="EmbeddingsCalculatorOVOptions",
                messages={
                    "EmbeddingsCalculatorOVOptions": "!string models_path, bool normalize_embeddings, "
                    "string target_device, string plugin_config, Pooling pooling, bool truncate, uint64 max_length",
                },
                enums={"Pooling": MODES},
                options={
                    "normalize_embeddings": GraphOption(
                        name="normalize",  # it has a third value here: by the model's files
                        read=lambda value, _: str(value).lower(),
                        write=lambda value: value == "true",
                    ),
                    "max_length": GraphOption(name="max_model_len"),
                    "pooling": GraphOption(write=_mode_to_graph),
                },
                node="Embeddings",
                packets=("EMBEDDINGS_NODE_RESOURCES:embeddings_servable",),
                http=False,
            ),
        ),
    ),
    metrics=(
        Metric(TOKENS, "counter", "tokens computed by a pooling model since it started"),
        Metric(PADDED_TOKENS, "counter", "the same with the padding of its batches"),
    ),
    methods={"embed": "llm:embed", "score": "llm:score", "classify": "llm:classify"},
    demos=(DemoModel(name="demo-embed", folder="demo_embed", task="embeddings"),),
)
