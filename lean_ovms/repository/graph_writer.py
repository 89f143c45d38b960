"""Writing a graph.pbtxt from the options of a model, for OVMS and for this server. The reverse of `graph.py`.

Options that a graph can hold are written when they are not the default, and some always, as in OVMS.
https://github.com/openvinotoolkit/model_server/blob/main/src/graph_export/graph_export.cpp
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from ..config import IMAGE_GENERATION, POOLING_TASKS, SPEECH_TO_TEXT, TEXT_TO_SPEECH, Config
from ..config.engine import PROPERTIES
from ..config.options import read_object
from ..errors import StartError
from .graph_schema import ENUMS, MESSAGES, PACKAGE, RENAMED, fields_of
from .task import TASKS, TEXT_GENERATION, ModelTask

DEFAULTS: dict[str, Any] = {row.name: row.default for row in fields(Config)}
ALWAYS = frozenset({"max_num_seqs", "models_path", "enable_prefix_caching", "cache_size"})
PLUGIN = {**PROPERTIES, "max_prompt_len": "MAX_PROMPT_LEN", "num_streams": "NUM_STREAMS"}
"""Options that a graph has no field for: they are written as OpenVINO properties in plugin_config."""

FRAME = """\
# File created with: lean_ovms {version}
{queue}input_stream: "{http}REQUEST_PAYLOAD:input"
output_stream: "{http}RESPONSE_PAYLOAD:output"
node {{
  name: "{node}Executor"
  calculator: "{calculator}"
{streams}
  node_options {{
    [type.googleapis.com/{package}.{message}] {{
{options}
    }}
  }}
{handler}}}
"""
"""The graph that OVMS needs around the options."""
QUEUE = "# OVMS_GRAPH_QUEUE_MAX_SIZE: AUTO\n"
STREAMS = """\
{packets}
  input_stream: "{http}REQUEST_PAYLOAD:input"
  output_stream: "{http}RESPONSE_PAYLOAD:output\""""
LOOP_STREAMS = """\
  input_stream: "LOOPBACK:loopback"
  input_stream: "{http}REQUEST_PAYLOAD:input"
{packets}
  output_stream: "LOOPBACK:loopback"
  output_stream: "{http}RESPONSE_PAYLOAD:output"
  input_stream_info {{
    tag_index: "LOOPBACK:0"
    back_edge: true
  }}"""
LOOP_HANDLER = """\
  input_stream_handler {
    input_stream_handler: "SyncSetInputStreamHandler"
    options {
      [mediapipe.SyncSetInputStreamHandlerOptions.ext] {
        sync_set {
          tag_index: "LOOPBACK:0"
        }
      }
    }
  }
"""
LOOPS = (TEXT_GENERATION.name, SPEECH_TO_TEXT)
"""Tasks whose calculator runs in a loop until the last token; the others have one call for each request."""
NODES = {
    TEXT_GENERATION.name: ("LLM", ("LLM_NODE_RESOURCES:llm", "LLM_NODE_EXECUTION_CONTEXTS:llm_ctx")),
    SPEECH_TO_TEXT: ("S2t", ("STT_NODE_RESOURCES:s2t_servable",)),
    TEXT_TO_SPEECH: ("T2s", ("TTS_NODE_RESOURCES:t2s_servable",)),
    IMAGE_GENERATION: ("ImageGen", ("IMAGE_GEN_NODE_RESOURCES:pipes",)),
    "embeddings": ("Embeddings", ("EMBEDDINGS_NODE_RESOURCES:embeddings_servable",)),
    "rerank": ("Rerank", ("RERANK_NODE_RESOURCES:rerank_servable",)),
}
"""The name of each task's node, and its side packets."""


def task_of(name: str) -> ModelTask | None:
    """Returns the task of this name ("" generates text), if a graph can have it."""
    found = next((task for task in TASKS if task.name == (name or TEXT_GENERATION.name)), None)
    return found if found is not None and found.options else None


def text(config: Config, models_path: str, draft_models_path: str, version: str) -> str:
    """Returns the graph for these options and their task. Both paths are relative to the graph. Raises StartError."""
    task = task_of(config.task)
    if task is None:
        raise StartError(f"a graph for the task {config.task} cannot be written: OVMS does not have the task")
    if config.pipeline_type in ("PAGED", "ASR"):
        raise StartError(
            f"--pipeline_type {config.pipeline_type} cannot be written: OVMS, which reads graphs too, does not know it"
        )
    values = {**_values(config, task), "models_path": models_path}
    if task is TEXT_GENERATION:
        values["draft_models_path"] = draft_models_path
    values["plugin_config"] = _plugin_config(config)
    kinds = fields_of(task.options)
    lines = [line for name, value in values.items() if name in ALWAYS or value not in ("", None)
             for line in _lines(name, value, kinds[name])]  # fmt: skip
    node, packets = NODES[task.name]
    loops, http = task.name in LOOPS, "" if task.name in POOLING_TASKS else "HTTP_"
    side = "\n".join(f'  input_side_packet: "{packet}"' for packet in packets)
    return FRAME.format(
        version=version,
        queue=QUEUE if loops else "",
        http=http,
        node=node,
        calculator=task.calculators[0],
        streams=(LOOP_STREAMS if loops else STREAMS).format(http=http, packets=side),
        package=PACKAGE,
        message=task.options,
        options="\n".join(" " * 6 + line for line in lines),
        handler=LOOP_HANDLER if loops else "",
    )


def written_options(name: str = "") -> dict[str, Any]:
    """Returns the options that `text` writes for a task, with their defaults: to be reset once the graph has them."""
    task = task_of(name)
    assert task is not None
    ours = {RENAMED.get(name, name) for name in _fields(task)} | {*PLUGIN, "plugin_config"}
    return {name: value for name, value in DEFAULTS.items() if name in ours and name != "model_path"}


def _fields(task: ModelTask) -> list[str]:
    """Returns the options of a graph that are also options here, by their names in the graph."""
    return [name for name in fields_of(task.options) if RENAMED.get(name, name) in DEFAULTS]


def _values(config: Config, task: ModelTask) -> dict[str, Any]:
    """Returns options that are not the default, or that are always written; None for the others."""
    found: dict[str, Any] = {}
    for name in _fields(task):
        ours = RENAMED.get(name, name)
        value = getattr(config, ours)
        if name in ALWAYS or ours == "target_device" or value != DEFAULTS[ours]:
            found[name] = value == "true" if ours == "normalize" else value
        else:
            found[name] = None
    if (mode := found.get("pooling")) not in (None, *ENUMS["Pooling"]):
        raise StartError(f"--pooling {mode} cannot be written: Only CLS, LAST and MEAN pooling modes are supported")
    return found


def _plugin_config(config: Config) -> str:
    properties = read_object("plugin_config", config.plugin_config)
    for option, name in PLUGIN.items():
        if (value := getattr(config, option)) != DEFAULTS[option]:
            if properties.get(name, value) != value:
                raise StartError(f"--{option} and --plugin_config disagree about {name}")
            properties[name] = value
    return json.dumps(properties, ensure_ascii=False) if properties else ""


def _lines(name: str, value: Any, kind: str) -> Iterator[str]:
    if name == "voices":
        for voice, path in json.loads(value).items():
            yield f"voices {{ name: {_scalar(voice)} path: {_scalar(path)} }}"
    elif kind in MESSAGES:
        yield from _message(name, json.loads(value))
    else:
        yield f"{name}: {value if kind in ENUMS else _scalar(value)}"


def _message(name: str, members: dict[str, Any]) -> Iterator[str]:
    """Returns a nested message, where every string is an enum value."""
    yield f"{name} {{"
    for key, value in members.items():
        if isinstance(value, dict):
            yield from ("  " + line for line in _message(key, value))
        else:
            yield f"  {key}: {value if isinstance(value, str) else _scalar(value)}"
    yield "}"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        mark = "'" if '"' in value and "'" not in value else '"'
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace(mark, "\\" + mark)
        return mark + escaped + mark
    return str(value)
