"""The format of graph.pbtxt as tables, for reading (graph.py, pbtxt.py) and writing (graph_writer.py).

protobuf is not used, since importing it takes 30 ms.

https://github.com/openvinotoolkit/model_server/blob/main/src/llm/llm_calculator.proto and its neighbours
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from ...composition import TEXT_GENERATION, Composition
from ...errors import StartError

T = TypeVar("T")

PACKAGE = "mediapipe"
"""The protobuf package of the messages."""
INVALID = "Its graph is not valid."
"""The reason of the error that clients may see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOption:
    """An option of a graph's node that has a different name or form here. Most options do not."""

    name: str = ""
    """The name of the option here; empty if it is the same."""
    read: Callable[[Any, Path], Any] | None = None
    """Converts a value in a graph, given the directory of its relative paths, to that here; None if they are equal."""
    write: Callable[[Any], Any] | None = None
    """Converts the value here to the value in a graph, which is a list of objects for a repeated message; None if they
    are equal. Raises StartError for a value that a graph cannot have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRow:
    """The form of OVMS's graph.pbtxt for models of one task."""

    calculators: tuple[str, ...]
    """The names of the calculators; the first one is written."""
    message: str
    """The name of the message with the node's options."""
    messages: dict[str, str]
    """The fields of the message with the options and of the messages inside it, by the message's name: "type name"
    each, separated by commas, with "!" before the type of a required field, and "*" before that of a repeated one."""
    node: str
    """The prefix of the node's name."""
    packets: tuple[str, ...]
    """The node's side packets."""
    loops: bool = False
    """Whether the calculator runs in a loop until its last output. If not, it is called once for each request."""
    http: bool = True
    """Whether the names of the node's streams have the prefix HTTP_."""
    enums: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The values of the enumerations that occur as types of fields, by the name of the enumeration."""
    options: dict[str, GraphOption] = field(default_factory=dict)
    """The options of the node that have a different name or form here."""
    ignored: dict[str, str] = field(default_factory=dict)
    """The options of the node that have no effect here, with the reasons."""


def _path(value: str, base: Path) -> str:
    return str(base / value)


def _mode(mode: str) -> str:
    if mode not in MODES:
        raise StartError(f"--pooling {mode} cannot be written: Only CLS, LAST and MEAN pooling modes are supported")
    return mode


def _voices(voices: list[dict[str, Any]], base: Path) -> str:
    return json.dumps({voice["name"]: str(base / voice["path"]) for voice in voices})


def _listed_voices(voices: str) -> list[dict[str, Any]]:
    return [{"name": name, "path": path} for name, path in json.loads(voices).items()]


COMPANIONS = {"draft_models_path": "draft_model_path"}
"""The fields of the graph for text generation with paths of further models, and the corresponding options."""
OPTIONS = {
    "models_path": GraphOption(name="model_path", read=_path),
    "device": GraphOption(name="target_device"),
    **{name: GraphOption(name=ours, read=_path) for name, ours in COMPANIONS.items()},
}
"""The options of every graph that have a different name or form here."""
MODES = ("CLS", "LAST", "MEAN")
"""The pooling modes of graphs."""
GRAPHS = {
    TEXT_GENERATION.name: GraphRow(
        calculators=("HttpLLMCalculator", "LLMCalculator"),
        message="LLMCalculatorOptions",
        messages={},
        node="LLM",
        packets=("LLM_NODE_RESOURCES:llm", "LLM_NODE_EXECUTION_CONTEXTS:llm_ctx"),
        loops=True,
        ignored={
            "chat_template_mode": "templates are always rendered by Jinja",
            "draft_block_size": "the device decides",
            "draft_dynamic_split_fuse": "prompts are split if dynamic_split_fuse is set, but not by LM_CB with a "
            "draft model",
        },
    ),
    "rerank": GraphRow(
        calculators=("RerankCalculatorOV", "RerankCalculator"),
        message="RerankCalculatorOVOptions",
        messages={
            "RerankCalculatorOVOptions": "!string models_path, uint64 max_allowed_chunks, "
            "uint64 max_position_embeddings, string target_device, string plugin_config"
        },
        node="Rerank",
        packets=("RERANK_NODE_RESOURCES:rerank_servable",),
        http=False,
    ),
    "embeddings": GraphRow(
        calculators=("EmbeddingsCalculatorOV", "EmbeddingsCalculator"),
        message="EmbeddingsCalculatorOVOptions",
        messages={
            "EmbeddingsCalculatorOVOptions": "!string models_path, bool normalize_embeddings, "
            "string target_device, string plugin_config, Pooling pooling, bool truncate, uint64 max_length"
        },
        enums={"Pooling": MODES},
        options={
            "normalize_embeddings": GraphOption(
                name="normalize",  # the option also has a third value: as the model's files say
                read=lambda value, _: str(value).lower(),
                write=lambda value: value == "true",
            ),
            "max_length": GraphOption(name="max_model_len"),
            "pooling": GraphOption(write=_mode),
        },
        node="Embeddings",
        packets=("EMBEDDINGS_NODE_RESOURCES:embeddings_servable",),
        http=False,
    ),
    "image_generation": GraphRow(
        calculators=("ImageGenCalculator",),
        message="ImageGenCalculatorOptions",
        messages={
            "LoraAdapterEntry": "!string alias, !string path, float alpha",
            "CompositeLoraComponent": "!string adapter_alias, float weight",
            "CompositeLoraAdapterEntry": "!string alias, *CompositeLoraComponent components",
            "ImageGenCalculatorOptions": "!string models_path, string device, string plugin_config, "
            "string max_resolution, string default_resolution, uint64 max_num_images_per_prompt, "
            "uint64 default_num_inference_steps, uint64 max_num_inference_steps, string resolution, "
            "uint64 num_images_per_prompt, float guidance_scale, *LoraAdapterEntry lora_adapters, "
            "*CompositeLoraAdapterEntry composite_lora_adapters",
        },
        node="ImageGen",
        packets=("IMAGE_GEN_NODE_RESOURCES:pipes",),
        ignored={
            "num_images_per_prompt": "the images of a request are generated one after the other",
            "guidance_scale": "networks are not reshaped to it; requests can set it",
            "lora_adapters": "--lora_modules has the adapters",
            "composite_lora_adapters": "--lora_modules has the adapters, which cannot be combined",
        },
    ),
    "text2speech": GraphRow(
        calculators=("T2sCalculator",),
        message="T2sCalculatorOptions",
        messages={
            "Voice": "!string name, !string path",
            "T2sCalculatorOptions": "!string models_path, string target_device, string plugin_config, "
            "*Voice voices, float speed_min, float speed_max",
        },
        options={"voices": GraphOption(read=_voices, write=_listed_voices)},
        node="T2s",
        packets=("TTS_NODE_RESOURCES:t2s_servable",),
    ),
    "speech2text": GraphRow(
        calculators=("S2tCalculator",),
        message="S2tCalculatorOptions",
        messages={
            "S2tCalculatorOptions": "!string models_path, string target_device, string plugin_config, "
            "bool enable_word_timestamps"
        },
        node="S2t",
        packets=("STT_NODE_RESOURCES:s2t_servable",),
        loops=True,
    ),
}
"""The forms of the graphs, by the task. OVMS has the same names of tasks."""

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
"""The fields of the core's messages, by message: "type name" each, "!" for required, "*" for repeated. Their numbers do
not matter, since nothing is serialized."""


def fields_of(fields: str) -> dict[str, str]:
    """Returns the types of a message's fields by name, in order."""
    pairs = (field.lstrip("!*").split() for field in fields.split(", "))
    return {name: kind for kind, name in pairs}


@dataclass(frozen=True, slots=True)
class GraphSchema:
    """The format of graphs for a set of features."""

    messages: dict[str, str]
    """The fields by message."""
    enums: dict[str, tuple[str, ...]]
    """The values by enumeration."""
    options: dict[str, GraphOption]
    """The options of nodes that have a different name or form here."""
    ignored: dict[str, str]
    """The options of nodes that have no effect here, with the reasons."""

    def name_here(self, option: str) -> str:
        """Returns the name that an option of a graph has here."""
        row = self.options.get(option)
        return row.name if row is not None and row.name else option


@cache
def schema_of(composition: Composition) -> GraphSchema:
    """Returns the format of graphs for the features of a server."""
    graphs = [GRAPHS[task.name] for task in composition.tasks if task.name in GRAPHS]
    return GraphSchema(
        messages=MESSAGES | _merged(row.messages for row in graphs),
        enums=ENUMS | _merged(row.enums for row in graphs),
        options=OPTIONS | _merged(row.options for row in graphs),
        ignored=_merged(row.ignored for row in graphs),
    )


def _merged(tables: Iterable[dict[str, T]]) -> dict[str, T]:
    return {name: row for table in tables for name, row in table.items()}
