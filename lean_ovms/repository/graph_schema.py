"""The format of graph.pbtxt as tables, for reading (graph.py, pbtxt.py) and writing (graph_writer.py).

Without protobuf, whose import takes 30 ms.

https://github.com/openvinotoolkit/model_server/blob/main/src/llm/llm_calculator.proto and its neighbours
"""

from __future__ import annotations

FILE = "graph.pbtxt"
PACKAGE = "mediapipe"
INVALID = "Its graph is not valid."
"""The reason that a client may know."""

RENAMED = {
    "models_path": "model_path",
    "device": "target_device",
    "draft_models_path": "draft_model_path",
    "normalize_embeddings": "normalize",
}
"""Graph options that are options here under another name; most have the same."""
PATHS = ("model_path", "draft_model_path")
"""Options that are paths: relative ones begin at the graph's base path."""
NO_EFFECT = {
    "chat_template_mode": "templates are always rendered by Jinja",
    "num_images_per_prompt": "images of a request are made one after the other",
    "guidance_scale": "networks are not reshaped to it; requests have it",
    "lora_adapters": "--lora_modules has the adapters",
    "composite_lora_adapters": "--lora_modules has the adapters, each alone",
    "draft_block_size": "the device decides",
    "draft_dynamic_split_fuse": "prompts are split as dynamic_split_fuse says, and never with LM_CB and a draft model",
}
"""Graph options without an effect here, and why."""

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
    "EmbeddingsCalculatorOVOptions": "!string models_path, bool normalize_embeddings, string target_device, "
    "string plugin_config, Pooling pooling, bool truncate",
    "RerankCalculatorOVOptions": "!string models_path, uint64 max_allowed_chunks, uint64 max_position_embeddings, "
    "string target_device, string plugin_config",
    "Voice": "!string name, !string path",
    "T2sCalculatorOptions": "!string models_path, string target_device, string plugin_config, *Voice voices, "
    "float speed_min, float speed_max",
    "S2tCalculatorOptions": "!string models_path, string target_device, string plugin_config, "
    "bool enable_word_timestamps",
    "LoraAdapterEntry": "!string alias, !string path, float alpha",
    "CompositeLoraComponent": "!string adapter_alias, float weight",
    "CompositeLoraAdapterEntry": "!string alias, *CompositeLoraComponent components",
    "ImageGenCalculatorOptions": "!string models_path, string device, string plugin_config, string max_resolution, "
    "string default_resolution, uint64 max_num_images_per_prompt, uint64 default_num_inference_steps, "
    "uint64 max_num_inference_steps, string resolution, uint64 num_images_per_prompt, float guidance_scale, "
    "*LoraAdapterEntry lora_adapters, *CompositeLoraAdapterEntry composite_lora_adapters",
    "Node": "string calculator",
    "CalculatorGraphConfig": "*Node node",
}
"""Fields by message; "!" is required, "*" repeated. Their numbers do not matter, since nothing is ever serialized."""


def fields_of(message: str) -> dict[str, str]:
    """Returns a mapping from name to type of the fields of a message, in order."""
    pairs = (field.lstrip("!*").split() for field in MESSAGES[message].split(", "))
    return {name: kind for kind, name in pairs}
