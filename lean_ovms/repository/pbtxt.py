"""graph.pbtxt as values: the options of its LLM node, read with protobuf's text format.

The rest of a graph says how MediaPipe connects calculators, which does not exist here: its syntax is checked and its
content skipped. The LLM node's options are read strictly, as OVMS does: an unknown one is an error that names it.
https://github.com/openvinotoolkit/model_server/blob/main/src/llm/llm_calculator.proto
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import Message

from ..errors import StartError

LLM_CALCULATORS = ("HttpLLMCalculator", "LLMCalculator")
OTHER_CALCULATORS = {
    "EmbeddingsCalculatorOV": "embeddings",
    "EmbeddingsCalculator": "embeddings",
    "RerankCalculatorOV": "rerank",
    "RerankCalculator": "rerank",
    "ImageGenCalculator": "image_generation",
    "S2tCalculator": "speech2text",
    "T2sCalculator": "text2speech",
}
"""Calculators of OVMS's other tasks."""

OPTIONS = "mediapipe.LLMCalculatorOptions"
NAMES = (f"/{OPTIONS}", f"{OPTIONS}.ext")
"""How node_options and options spell it, in brackets."""
OPENING, CLOSING = ("{", "<"), ("}", ">")
REASON = "Its graph is not valid."

Kind = descriptor_pb2.FieldDescriptorProto

KINDS = {
    "string": Kind.TYPE_STRING,
    "bool": Kind.TYPE_BOOL,
    "uint64": Kind.TYPE_UINT64,
    "uint32": Kind.TYPE_UINT32,
    "float": Kind.TYPE_FLOAT,
}
ENUMS = {
    "AnchorPointMode": ("RANDOM", "ZEROS", "ONES", "MEAN", "ALTERNATING"),
    "AggregationMode": ("SUM", "NORM_SUM"),
    "SparseAttentionMode": ("TRISHAPE", "XATTENTION"),
    "PipelineType": ("LM", "VLM", "LM_CB", "VLM_CB", "OMNI", "AUTO"),
    "ChatTemplateMode": ("MINJA", "JINJA"),
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
"""Fields by message; "!" is required, "*" repeated. Their numbers do not matter, since nothing is ever serialized."""


def llm_options(text: str) -> dict[str, Any]:
    """The options that the LLM node of a graph sets. Raises StartError, without the file's name."""
    graph = _parsed(text, "CalculatorGraphConfig", tolerant=True)
    calculators = [node.calculator for node in graph.node]
    if not any(name in LLM_CALCULATORS for name in calculators):
        raise StartError(_no_llm_node(calculators), reason="Its graph has no LLM node.")
    found = _options_text(text)
    if found is None:
        raise StartError(f"its LLM node has no node_options of the type {OPTIONS}", reason=REASON)
    options = _parsed(found, "LLMCalculatorOptions", tolerant=False)
    if missing := options.FindInitializationErrors():
        raise StartError(f"its LLM node does not set {', '.join(missing)}", reason=REASON)
    return _values(options)


def _no_llm_node(calculators: list[str]) -> str:
    for name in calculators:
        if name in OTHER_CALCULATORS:
            return f"it is a graph for the task {OTHER_CALCULATORS[name]} ({name}), which this server does not serve"
    named = ", ".join(name for name in calculators if name) or "none"
    return f"it has no LLM node (calculator {LLM_CALCULATORS[0]}); its calculators: {named}"


def _options_text(text: str) -> str | None:
    """What stands between the braces of the LLM options; the first of several."""
    words = _words(text)
    opened = 0
    for at, word in enumerate(words):
        if word == "[":
            opened = at
        elif word == "]" and "".join(words[opened + 1 : at]).endswith(NAMES):
            return _between_braces(words[at + 1 :])
    return None


def _between_braces(words: list[str]) -> str:
    start = next(i for i, word in enumerate(words) if word in OPENING)
    depth = 0
    for at in range(start, len(words)):
        depth += (words[at] in OPENING) - (words[at] in CLOSING)
        if not depth:
            return " ".join(words[start + 1 : at])
    raise AssertionError("the whole has been parsed: braces are balanced")


def _words(text: str) -> list[str]:
    tokenizer = text_format.Tokenizer(text.splitlines())
    found = []
    while not tokenizer.AtEnd():
        found.append(tokenizer.token)
        tokenizer.NextToken()
    return found


def _parsed(text: str, name: str, *, tolerant: bool) -> Any:
    message = _message(name)
    try:
        return text_format.Parse(text, message, allow_unknown_field=tolerant)
    except text_format.ParseError as error:
        raise StartError(_told(str(error), tolerant), reason=REASON) from None


def _told(error: str, with_place: bool) -> str:
    unknown = re.search(r'has no field named "(\w+)"', error)
    if unknown:
        names = [field.split()[-1] for fields in MESSAGES.values() for field in fields.split(", ")]
        near = difflib.get_close_matches(unknown[1], names, 1)
        return f"its LLM node has no option {unknown[1]!r}" + (f"; did you mean {near[0]}?" if near else "")
    place, _, what = error.partition(" : ")
    if not what:
        return error
    return f"line {place.split(':')[0]}: {what}" if with_place else f"its LLM node: {what}"


def _values(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.enum_type is not None:
            value = field.enum_type.values_by_number[value].name
        found[field.name] = _values(value) if isinstance(value, Message) else value
    return found


def _message(name: str) -> Message:
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"mediapipe.{name}"))()


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="graph.proto", package="mediapipe", syntax="proto2")
    for name, values in ENUMS.items():
        # Values of an enum are siblings of the enum in protobuf, so each has a message around it.
        enum = file.message_type.add(name=f"In{name}").enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field in enumerate(fields.split(", "), 1):
            _add(message, number, field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _add(message: descriptor_pb2.DescriptorProto, number: int, field: str) -> None:
    kind, name = field.split()
    label = {"!": Kind.LABEL_REQUIRED, "*": Kind.LABEL_REPEATED}.get(kind[0], Kind.LABEL_OPTIONAL)
    kind = kind.lstrip("!*")
    added = message.field.add(name=name, number=number, label=label)
    if kind in KINDS:
        added.type = KINDS[kind]
    elif kind in ENUMS:
        added.type, added.type_name = Kind.TYPE_ENUM, f".mediapipe.In{kind}.{kind}"
    else:
        added.type, added.type_name = Kind.TYPE_MESSAGE, f".mediapipe.{kind}"
