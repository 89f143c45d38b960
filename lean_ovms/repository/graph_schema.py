"""The format of graph.pbtxt as tables, for reading (graph.py, pbtxt.py) and writing (graph_writer.py).

Without protobuf, whose import takes 30 ms.

https://github.com/openvinotoolkit/model_server/blob/main/src/llm/llm_calculator.proto and its neighbours
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from ..composition import Composition
from ..manifest import GraphOption

T = TypeVar("T")

PACKAGE = "mediapipe"
"""The package of their messages."""
INVALID = "Its graph is not valid."
"""The reason that a client may know."""


def _path(value: str, base: Path) -> str:
    return str(base / value)


OPTIONS = {
    "models_path": GraphOption(name="model_path", read=_path),
    "device": GraphOption(name="target_device"),
}
"""Options of the core that graphs have under another name."""
NO_EFFECT = {"chat_template_mode": "templates are always rendered by Jinja"}
"""Graph options of the core's task without an effect here, and why."""

ENUMS = {
    "AnchorPointMode": ("RANDOM", "ZEROS", "ONES", "MEAN", "ALTERNATING"),
    "AggregationMode": ("SUM", "NORM_SUM"),
    "SparseAttentionMode": ("TRISHAPE", "XATTENTION"),
    "PipelineType": ("LM", "VLM", "LM_CB", "VLM_CB", "OMNI", "AUTO"),
    "ChatTemplateMode": ("MINJA", "JINJA"),
}
"""The values of the core's enumerations."""
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


def fields_of(fields: str) -> dict[str, str]:
    """Returns a mapping from name to type of the fields of a message, in order."""
    pairs = (field.lstrip("!*").split() for field in fields.split(", "))
    return {name: kind for kind, name in pairs}


@dataclass(frozen=True, slots=True)
class GraphSchema:
    """The format for some features."""

    messages: dict[str, str]
    """The fields by message."""
    enums: dict[str, tuple[str, ...]]
    """The values by enumeration."""
    options: dict[str, GraphOption]
    """The options of nodes that have another name or form here."""
    ignored: dict[str, str]
    """The options of nodes that have no effect here, and why."""

    def name_here(self, option: str) -> str:
        """Returns the name here of an option of a graph."""
        row = self.options.get(option)
        return row.name if row is not None and row.name else option


@cache
def schema_of(composition: Composition) -> GraphSchema:
    """Returns the format for the features of a server."""
    graphs, companions = composition.graphs, composition.companions
    return GraphSchema(
        messages=MESSAGES | _merged(row.messages for row in graphs),
        enums=ENUMS | _merged(row.enums for row in graphs),
        options=OPTIONS
        | {row.graph: GraphOption(name=row.path, read=_path) for row in companions}
        | _merged(row.options for row in graphs),
        ignored=NO_EFFECT | _merged([*(row.ignored for row in graphs), *(row.ignored for row in companions)]),
    )


def _merged(tables: Iterable[dict[str, T]]) -> dict[str, T]:
    return {name: row for table in tables for name, row in table.items()}
