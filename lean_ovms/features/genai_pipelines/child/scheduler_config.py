"""Converts the options of the KV cache and the scheduler to GenAI's SchedulerConfig."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openvino_genai as genai

from ....config import EngineConfig
from ....config.options import read_object
from ....engine.loading.settings import PipelineSettings, draft_bytes_per_token
from ....errors import StartError, last_line
from ....types import Json
from ..feature import GenAiOptions

log = logging.getLogger(__name__)

EVICTION = {
    "start_size": int,
    "recent_size": int,
    "max_cache_size": int,
    "aggregation_mode": genai.AggregationMode,
    "apply_rotation": bool,
    "snapkv_window_size": int,
    "kv_crush_config": dict,
}
EVICTION_WORDS = ("cacheevictionconfig", "cache_eviction", "rotation")
"""Texts in the binding's errors about eviction, in lower case."""
KV_CRUSH = {"budget": int, "anchor_point_mode": genai.KVCrushAnchorPointMode, "rng_seed": int}
SPARSE = {
    "mode": genai.SparseAttentionMode,
    "num_last_dense_tokens_in_prefill": int,
    "num_retained_start_tokens_in_cache": int,
    "num_retained_recent_tokens_in_cache": int,
    "xattention_threshold": float,
    "xattention_block_size": int,
    "xattention_stride": int,
}
"""Fields of OVMS's LLMCalculatorOptions and their types; an enum of the binding takes the name of a member."""


def scheduler(config: EngineConfig, settings: PipelineSettings) -> Any:
    """Returns the main model's SchedulerConfig. Raises StartError with the option at fault."""
    result = genai.SchedulerConfig()
    if settings.blocks:
        result.num_kv_blocks = settings.blocks
    else:
        result.cache_size = settings.cache_gb
    result.max_num_batched_tokens = settings.step_tokens
    result.max_num_seqs = config.max_num_seqs
    result.dynamic_split_fuse = settings.split_prompts
    result.enable_prefix_caching = settings.prefix_caching
    if config.cache_interval_multiplier:
        result.cache_interval_multiplier = config.cache_interval_multiplier
    options = config.of(GenAiOptions)
    if options.cache_eviction_config:
        result.use_cache_eviction = True
        result.cache_eviction_config = _eviction(options.cache_eviction_config)
    if options.sparse_attention_config:
        result.use_sparse_attention = True
        result.sparse_attention_config = _sparse(options.sparse_attention_config)
    return result


def draft_scheduler(config: EngineConfig, settings: PipelineSettings) -> Any:
    """Returns the draft model's SchedulerConfig, which differs from the main model's by the draft_ options.

    dynamic_split_fuse is the main model's, since GenAI gives wrong answers if a draft model gets prompts in parts.
    """
    result = scheduler(config, settings)
    drafts = settings.drafts
    if drafts.cache_gb:
        result.num_kv_blocks, result.cache_size = 0, drafts.cache_gb
    if drafts.step_tokens:
        result.max_num_batched_tokens = max(drafts.step_tokens, settings.step_tokens)
    if drafts.max_sequences:
        result.max_num_seqs = drafts.max_sequences
    return result


def draft_blocks(config: EngineConfig, settings: PipelineSettings) -> int:
    """Returns the number of blocks in the draft model's own cache; 0 for as many as the main model has.

    If a draft model ran out of blocks, all running requests would end, as with the main model.
    """
    drafts = settings.drafts
    if not (drafts.model and drafts.cache_gb):
        return 0
    per_block = settings.block_size * draft_bytes_per_token(config, drafts.model, settings.properties)
    return max(1, (drafts.cache_gb << 30) // per_block) if per_block else 0


def _eviction(text: str) -> Any:
    option = "cache_eviction_config"
    given = _typed(option, read_object(option, text), EVICTION)
    missing = [name for name in ("start_size", "recent_size", "max_cache_size") if name not in given]
    if missing:
        raise StartError(f"--{option} lacks {', '.join(missing)}")
    crush = given.pop("kv_crush_config", None)
    given.setdefault("aggregation_mode", genai.AggregationMode.NORM_SUM)
    if given.get("snapkv_window_size"):
        log.warning("--%s: snapkv_window_size was set to 0", option)
    # With a window, GenAI 2026.4.1 fails at prompts longer than start_size if the difference is less than the window.
    given["snapkv_window_size"] = 0
    if crush is not None:
        crush = {"budget": 0, **_typed(option, crush, KV_CRUSH)}
    with _at_fault(option):
        if crush is not None:
            given["kvcrush_config"] = genai.KVCrushConfig(**crush)
        return genai.CacheEvictionConfig(**given)


def _sparse(text: str) -> Any:
    option = "sparse_attention_config"
    with _at_fault(option):
        return genai.SparseAttentionConfig(**_typed(option, read_object(option, text), SPARSE))


def _typed(option: str, given: Json, kinds: dict[str, Any]) -> Json:
    """Converts values to the types of the binding. Raises StartError for unknown names and wrong values."""
    return {name: _value(f"--{option}: {name}", value, kinds.get(name)) for name, value in given.items()}


def _value(name: str, value: Any, kind: Any) -> Any:
    if kind is None:
        raise StartError(f"{name} is unknown")
    if hasattr(kind, "__members__"):
        if value not in kind.__members__:
            raise StartError(f"{name} must be one of: {', '.join(kind.__members__)}, not {value!r}")
        return kind.__members__[value]
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        words = {int: "a whole number", float: "a number", bool: "true or false", dict: "an object"}
        raise StartError(f"{name} must be {words[kind]}, not {value!r}")
    return value


@contextmanager
def eviction_errors(config: EngineConfig) -> Iterator[None]:
    """Converts errors of the binding about --cache_eviction_config to a StartError that names the option."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        whole = str(error).lower()
        if config.of(GenAiOptions).cache_eviction_config and any(word in whole for word in EVICTION_WORDS):
            raise StartError(f"--cache_eviction_config: {last_line(error)}") from error
        raise


@contextmanager
def _at_fault(option: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise StartError(f"--{option}: {last_line(error)}") from error
