"""Recognizes what the model in a directory computes: kind, pooling, normalization, activation, window.

The network's own inputs and outputs are better evidence than names of classes. PoolingInfo has each decision and its
source, for the log and for /v1/models.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ....config import EngineConfig
from ....errors import StartError
from ....repository.model_config import count
from ....types import Json
from ..feature import PoolingOptions
from ..types import AND, CLASSIFY, EMBED, IMAGES_ALONE, SCORE, SPARSE, TOKEN_CLASSIFY, TOKEN_EMBED, PoolingInfo
from .files import POOLING_MODES, PoolingFiles

Value = TypeVar("Value")
MODEL = "MODEL"
"""The pooling of a network that pools by itself."""
SPLADE = "SPLADE"
"""The pooling of a masked language model whose logits become weights of the vocabulary's tokens."""
ALL = "ALL"
"""The pooling of a model that has a vector for each token; vLLM's name."""
COLBERT = re.compile("colbert", re.IGNORECASE)
"""The mark in the architecture of such models: HF_ColBERT, ColBERTModernBertModel, ..."""
PROJECTED = ("colbert_dim", "dim", "projection_dim")
"""The length of their vectors in config.json, as vLLM looks for it."""
NO_YES = ("no", "yes")
"""The tokens whose logits a reranker compares that generates text; the labels of one that has a row for these alone."""
LABELLED = 2
"""A classifier of more labels than this does not rerank."""
CLASSES = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}
"""The activation functions by the names of torch's classes."""
WINDOW_KEYS = ("max_position_embeddings", "n_positions", "seq_len", "seq_length", "n_ctx", "sliding_window")
UNKNOWN_WINDOW = 1024
"""OVMS's window for a config.json without any of WINDOW_KEYS."""
TOWER_WINDOWS = {"clip_text_model": 77, "siglip_text_model": 64}
"""The windows of text towers by model type: transformers' defaults, which a config.json may leave out."""
OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl", "roberta-prelayernorm")
"""Model types whose positions begin after that of the padding token."""
DECODERS = ("qwen", "llama", "mistral", "gemma", "phi", "gpt")
"""Beginnings of model types that read from left to right: their last token has seen the whole text."""
DECODER_FAMILIES = (
    (r"embeddinggemma|stella|gritlm|llm2vec|embed-nemotron|nv-embedqa", "MEAN"),
    (r"sgpt", "WEIGHTED_MEAN"),
    (r"gte-qwen", "LAST"),
)
"""The pooling of decoders that is not known by their architecture: some read in both directions."""
FAMILIES = (
    *DECODER_FAMILIES,
    (r"qwen3-embedding|e5-mistral|bge-(en-icl|multilingual-gemma|code)|nomic-embed-code", "LAST"),
    (r"sfr-embedding|linq-embed|jina-(code-embeddings|embeddings-v5)", "LAST"),
    (r"multi-qa-.*-dot|tas-b|co-condensor|ance-firstp", "CLS"),
    (r"all-(minilm|mpnet|distilroberta|roberta)|paraphrase-|multi-qa|msmarco-|distiluse|gtr-t5|sentence-t5", "MEAN"),
    (r"bge-micro|mxbai-embed-xsmall|deepset-mxbai|modernbert-embed", "MEAN"),
    (r"gte-(multilingual|.*-v1\.5)|gte-modernbert|bge-|snowflake-arctic|mxbai-embed|granite-embedding", "CLS"),
    (r"labse|uae-large|scincl|specter|facebook-dpr", "CLS"),
    (r"(^|[-_/])(multilingual-)?e5-|nomic-embed|jina-embedding|(^|[-_/])gte-(small|base|large|tiny)", "MEAN"),
    (r"codesage|contriever|text2vec|(^|[-_/])m3e-", "MEAN"),
)
"""The pooling of known families by the names that their models have: that of their own 1_Pooling/config.json."""
OWN_LIMITS = (
    (r"all-minilm-l6|all-roberta-large|labse|gtr-t5|sentence-t5", 256),
    (r"all-minilm-l12|paraphrase-(multilingual|minilm)|distiluse", 128),
    (r"all-mpnet-base", 384),
)
"""The most tokens of an input of known families, as their own sentence_bert_config.json says, by the names that their
models have. Families whose limit is the number of their network's positions are left out."""


class Shape(NamedTuple):
    """The inputs and the output of a network, by which its kind is recognized."""

    inputs: frozenset[str]
    """The names of its inputs."""
    output: str
    """The name of the output that is used."""
    rank: int
    """The number of dimensions of that output."""
    width: int
    """The size of the output's last dimension; 0 if it is dynamic."""
    images: str = ""
    """IMAGES_ALONE, IMAGES_IN_TEXT, or "" if the network reads text only."""
    has_token_vectors: bool = True
    """Whether the network has an output with a vector for each token."""


@dataclass(frozen=True, slots=True)
class Recognized:
    """The result of recognizing a pooling model."""

    info: PoolingInfo
    """The properties of the model."""
    causal: bool = False
    """Whether the network is a causal LM whose score is computed from its logits for two tokens."""


def recognize(config: EngineConfig, files: PoolingFiles, shape: Shape) -> Recognized:
    """Returns what kind of pooling model an export is, and how its results are pooled.

    The caller still has to set special_single, special_pair and pair in the PoolingInfo.

    Args:
        config: The options, such as the task and --pooling.
        files: The settings in the files of the model.
        shape: The inputs and the output of the network.

    Raises:
        StartError: The options do not fit the network.
    """
    if shape.output == "logits":
        return _sparse(config, files, shape) or _with_logits(config, files, shape)
    if config.task != "embeddings":
        raise StartError(f"--task {config.task}: the network computes embeddings, not logits")
    mode, source, assumed = _pooling(config, files, shape)
    _check_mode(mode, files, shape)
    pools_prompts = mode == ALL or files.pools_prompts
    if not pools_prompts:
        _check_prompts_left_out(config, mode)
    alone, any_size = shape.images == IMAGES_ALONE, config.of(PoolingOptions).matryoshka
    listed = files.config.get("matryoshka_dimensions")
    allowed = [one for one in listed if type(one) is int] if isinstance(listed, list) else []
    return Recognized(
        PoolingInfo(
            kind=TOKEN_EMBED if mode == ALL else EMBED,
            dimensions=_dimensions(files, shape, mode),
            window=window(config, files),
            pooling=mode,
            pooling_source=source,
            pooling_assumed=assumed,
            normalize=alone or _normalize(config, files, mode),
            matryoshka=any_size or files.config.get("is_matryoshka") is True or bool(allowed),
            matryoshka_dimensions=[] if any_size else sorted(allowed),
            prompts=files.prompts,
            has_token_vectors=shape.has_token_vectors,
            pools_prompts=pools_prompts,
            lower_case=files.lower_case or (alone and files.tokenizer_config.get("do_lower_case") is True),
            images=shape.images,
        )
    )


# --- embeddings


def _dimensions(files: PoolingFiles, shape: Shape, mode: str) -> int:
    """Returns the number of dimensions of the vectors that a network and the Dense modules after it compute."""
    dense = [] if mode == MODEL else files.dense_after(shape.output, each_token=mode == ALL)
    if dense:
        return dense[-1].outputs
    projected = [found for key in PROJECTED if (found := count(files.config, key))] if mode == ALL else []
    width = shape.width or count(files.config, "hidden_size") or count(files.config, "d_model")
    return projected[0] if projected else width * len(mode.split(AND))


def _check_mode(mode: str, files: PoolingFiles, shape: Shape) -> None:
    """Raises StartError if the network's output cannot be pooled like this."""
    if mode == SPLADE:
        raise StartError(f"--pooling {SPLADE}: the network computes embeddings; export it with --task fill-mask")
    if mode == ALL and shape.rank != 3:
        raise StartError(f"--pooling {ALL}: the network's output {shape.output} is not one vector for each token")
    if mode != MODEL and files.unsupported:
        raise StartError(f"modules.json has the module {files.unsupported}, which is not supported here")


def _sparse(config: EngineConfig, files: PoolingFiles, shape: Shape) -> Recognized | None:
    """Returns the description of a masked language model whose logits become sparse vectors; None for others."""
    if config.task != "embeddings" or shape.rank != 3 or "beam_idx" in shape.inputs:
        return None
    mode, source, _ = _pooling(config, files, shape)
    if mode != SPLADE:
        return None
    info = PoolingInfo(
        kind=SPARSE,
        dimensions=shape.width or count(files.config, "vocab_size"),
        window=window(config, files),
        pooling=SPLADE,
        pooling_source=source,
        prompts=files.prompts,
        lower_case=files.lower_case,
    )
    return Recognized(info)


def _pooling(config: EngineConfig, files: PoolingFiles, shape: Shape) -> tuple[str, str, bool]:
    """Returns the pooling mode, the source that decided it, and whether it is only assumed. Raises StartError."""
    if chosen := config.of(PoolingOptions).pooling:
        return chosen, "the option or graph option pooling", False
    architectures = files.config.get("architectures")
    if isinstance(architectures, list) and any(COLBERT.search(str(name)) for name in architectures):
        return ALL, f"config.json ({architectures[0]})", False
    if shape.rank == 3 and files.keeps_tokens:
        return ALL, "modules.json (a Dense module and no Pooling)", False
    if shape.rank == 2:
        return MODEL, f"the network's output {shape.output}", False
    if files.pooling:
        known = {mode for mode, *_ in POOLING_MODES} | {SPLADE}
        if unknown := next((mode for mode in files.pooling if mode not in known), ""):
            raise StartError(f"{files.pooling_source} has the pooling mode {unknown}, which is not supported here")
        return AND.join(files.pooling), files.pooling_source, False
    kind = str(files.config.get("model_type", ""))
    if kind == "static":
        return "MEAN", "config.json (static token embeddings)", False
    decoder = kind.startswith(DECODERS) or files.config.get("is_causal") is True
    if named := _by_name(files, DECODER_FAMILIES if decoder else FAMILIES):
        return named[1], f"the model's name ({named[0]})", False
    if decoder and not _reads_both_ways(files.config, kind):
        return "LAST", f"the architecture ({kind or 'causal'})", False
    return "MEAN" if decoder else "CLS", "a default, since there is no 1_Pooling/config.json (--pooling sets it)", True


def _check_prompts_left_out(config: EngineConfig, mode: str) -> None:
    """Raises StartError if the tokens of prompts cannot be left out of pooled vectors, as a model's files want."""
    start = "1_Pooling/config.json leaves the tokens of prompts out of vectors (include_prompt)"
    if mode == MODEL:
        raise StartError(f"{start}, but the network pools by itself and has no output of one vector for each token")
    if config.of(PoolingOptions).embed_long_inputs == "mean":
        raise StartError(f"{start}, which --embed_long_inputs mean cannot do")


def _by_name(files: PoolingFiles, table: Sequence[tuple[str, Value]]) -> tuple[str, Value] | None:
    """Returns the part of the model's name that a pattern of the table matches, and the pattern's value, or None."""
    for pattern, value in table:
        if found := re.search(pattern, files.names):
            return found[0].strip("-_/ "), value
    return None


def _reads_both_ways(config: Json, kind: str) -> bool:
    """Returns whether the attention of a decoder is bidirectional, so that every token attends to the whole text."""
    wide = config.get("use_bidirectional_attention") or config.get("is_causal") is False
    return bool(wide) or "bidirec" in kind


def lost_limit(files: PoolingFiles) -> int:
    """Returns the most tokens of the original model, known by its name, if the export lost that file, else 0."""
    named = None if files.max_seq_length or files.modules is not None else _by_name(files, OWN_LIMITS)
    return named[1] if named else 0


def _normalize(config: EngineConfig, files: PoolingFiles, mode: str) -> bool:
    if chosen := config.of(PoolingOptions).normalize:
        return chosen == "true"
    if mode == MODEL:
        return False  # the network already does what the model's files say
    if mode == ALL:
        return True  # ColBERT's libraries normalize without a module for it
    return files.normalizes is not False


# --- scores and classes


def _with_logits(config: EngineConfig, files: PoolingFiles, shape: Shape) -> Recognized:
    labels, width = files.labels, shape.width or len(files.labels)
    limit = window(config, files)
    answers = width == len(NO_YES) and sorted(labels) == [*NO_YES]
    if "beam_idx" in shape.inputs or (shape.rank == 3 and (answers or width == count(files.config, "vocab_size"))):
        if config.task != "rerank":
            raise StartError(
                f"--task {config.task}: the network generates text; export it with --task feature-extraction"
            )
        info = PoolingInfo(kind=SCORE, dimensions=1, window=limit, activation="sigmoid", pooling_source="yes and no")
        return Recognized(info, causal=True)
    if shape.rank == 3:
        kind, activation = TOKEN_CLASSIFY, "softmax"
    else:
        kind = SCORE if config.task == "rerank" else CLASSIFY
        activation = _activation(files.config, width)
    if kind == SCORE and width > LABELLED:
        raise StartError(f"--task rerank: this is a classifier of {width} labels; serve it with --task classify")
    if {"rerank": SCORE, "classify": CLASSIFY, "token_classify": TOKEN_CLASSIFY}.get(config.task) != kind:
        raise StartError(f"--task {config.task}: the network computes logits for the task {kind}")
    info = PoolingInfo(
        kind=kind,
        dimensions=1 if kind == SCORE else width,
        window=limit,
        labels=labels,
        activation=activation,
        outputs=width,
    )
    return Recognized(info)


def _activation(config: Json, width: int) -> str:
    """Returns the activation by vLLM's rules: problem_type, sentence-transformers' entry, the number of labels."""
    by_width = "softmax" if width > 1 else "sigmoid"
    problem = config.get("problem_type")
    if problem == "regression":
        return "none"
    if problem == "single_label_classification":
        return by_width
    if problem == "multi_label_classification":
        return "sigmoid"
    inner = config.get("sentence_transformers")
    named = inner.get("activation_fn") if isinstance(inner, dict) else None
    named = named or config.get("sbert_ce_default_activation_function")
    return CLASSES.get(str(named).rpartition(".")[2], by_width)


# --- window


def window(config: EngineConfig, files: PoolingFiles) -> int:
    """Returns the most tokens of an input: the smallest of the limits in the options and the model's files."""
    own = next((found for key in WINDOW_KEYS if (found := count(files.config, key))), 0)
    if own and files.config.get("model_type") in OFFSET_POSITIONS:
        own -= count(files.config, "pad_token_id") + 1
    own = own or TOWER_WINDOWS.get(str(files.config.get("model_type")), UNKNOWN_WINDOW)
    limits = (
        own,
        config.max_model_len,
        config.of(PoolingOptions).max_position_embeddings,
        files.max_seq_length,
        files.model_max_length,
    )
    return min(limit for limit in limits if limit > 0)
