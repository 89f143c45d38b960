"""The format of graph.pbtxt as tables, for reading (graph.py, pbtxt.py) and writing (graph_writer.py).

Without protobuf, whose import takes 30 ms.

https://github.com/openvinotoolkit/model_server/blob/main/src/llm/llm_calculator.proto and its neighbours
"""

from __future__ import annotations

from ..composition import Composition

FILE = "graph.pbtxt"
PACKAGE = "mediapipe"
INVALID = "Its graph is not valid."
"""The reason that a client may know."""

RENAMED = {
    "models_path": "model_path",
    "device": "target_device",
    "draft_models_path": "draft_model_path",
    "normalize_embeddings": "normalize",
    "max_length": "max_model_len",
}
"""Graph options that are options here under another name; most have the same."""
PATHS = ("model_path", "draft_model_path")
"""Options that are paths: relative ones begin at the graph's base path."""
NO_EFFECT = {
    "chat_template_mode": "templates are always rendered by Jinja",
    "draft_block_size": "the device decides",
    "draft_dynamic_split_fuse": "prompts are split as dynamic_split_fuse says, and never with LM_CB and a draft model",
}
"""Graph options of the core's task without an effect here, and why."""

ENUMS = {
    "AnchorPointMode": ("RANDOM", "ZEROS", "ONES", "MEAN", "ALTERNATING"),
    "AggregationMode": ("SUM", "NORM_SUM"),
    "SparseAttentionMode": ("TRISHAPE", "XATTENTION"),
    "PipelineType": ("LM", "VLM", "LM_CB", "VLM_CB", "OMNI", "AUTO"),
    "ChatTemplateMode": ("MINJA", "JINJA"),
    "Pooling": ("CLS", "LAST", "MEAN"),
}
MESSAGES = {
    "KVCrushConfig": "uint64 budget, AnchorPointMode anchor_point_mode, uint64 rng_seed",
    "CacheEvictionConfig": "AggregationMode aggregation_mode, !uint64 start_size, !uint64 recent_size, "
    "!uint64 max_cache_size, bool apply_rotation, uint64 snapkv_window_size, KVCrushConfig kv_crush_config",
    "SparseAttentionConfig": "SparseAttentionMode mode, uint64 num_last_dense_tokens_in_prefill, "
    "uint64 num_retained_start_tokens_in_cache, uint64 num_retained_recent_tokens_in_cache, "
    "float xattention_threshold, uint64 xattention_block_size, uint64 xattention_stride",
    "LLMCalculatorOptions": "!string models_path, uint64 max_num_batched_tokens, uint64 cache_size, "
    "uint64 max_num_seqs, bool dynamic_split_fuse, string device, string plugin_config, uint32 best_of_limit, "
    "uint32 max_tokens_limit, bool enable_prefix_caching, string draft_models_path, string draft_device, "
    "uint64 draft_max_num_batched_tokens, uint64 draft_cache_size, uint64 draft_block_size, "
    "uint64 draft_max_num_seqs, bool draft_dynamic_split_fuse, bool draft_eagle3_mode, PipelineType pipeline_type, "
    "CacheEvictionConfig cache_eviction_config, string tool_parser, string reasoning_parser, "
    "bool enable_tool_guided_generation, SparseAttentionConfig sparse_attention_config, "
    "uint64 cache_interval_multiplier, ChatTemplateMode chat_template_mode, string generation_config_path",
    "Node": "string calculator",
    "CalculatorGraphConfig": "*Node node",
}
"""Fields by message of the core: "type name" each, "!" for required, "*" for repeated. Their numbers do not matter,
since nothing is ever serialized."""


def messages(composition: Composition) -> dict[str, str]:
    """Returns the fields by message of all tasks."""
    found = dict(MESSAGES)
    for task in composition.tasks:
        if task.graph is not None:
            found |= task.graph.messages
    return found


def fields_of(fields: str) -> dict[str, str]:
    """Returns a mapping from name to type of the fields of a message, in order."""
    pairs = (field.lstrip("!*").split() for field in fields.split(", "))
    return {name: kind for kind, name in pairs}


def without_effect(composition: Composition) -> dict[str, str]:
    """Returns the graph options that have no effect here, and why."""
    found = dict(NO_EFFECT)
    for task in composition.tasks:
        if task.graph is not None:
            found |= task.graph.ignored
    return found
