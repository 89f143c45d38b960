"""Writing a graph.pbtxt from the options of a model, for OVMS and for this server. The reverse of `graph.py`.

Options that a graph can hold are written when they are not the default, and some always, as in OVMS.
https://github.com/openvinotoolkit/model_server/blob/main/src/graph_export/graph_export.cpp
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from ..config import SPEECH_TO_TEXT, TEXT_TO_SPEECH, Config
from ..config.options import read_object
from ..errors import StartError
from .graph_schema import ENUMS, MESSAGES, PACKAGE, RENAMED, fields_of
from .task import TASKS, TEXT_GENERATION, ModelTask

ALWAYS = frozenset({"max_num_seqs", "models_path", "enable_prefix_caching", "cache_size"})
PLUGIN = {
    "kv_cache_precision": "KV_CACHE_PRECISION",
    "max_prompt_len": "MAX_PROMPT_LEN",
    "model_distribution_policy": "MODEL_DISTRIBUTION_POLICY",
    "cache_dir": "CACHE_DIR",
    "num_streams": "NUM_STREAMS",
}
"""Options that a graph has no field for: they are written as OpenVINO properties in plugin_config."""

FRAME = """\
# File created with: lean_ovms {version}
# OVMS_GRAPH_QUEUE_MAX_SIZE: AUTO
input_stream: "HTTP_REQUEST_PAYLOAD:input"
output_stream: "HTTP_RESPONSE_PAYLOAD:output"
node {{
  name: "{node}Executor"
  calculator: "{calculator}"
  input_stream: "LOOPBACK:loopback"
  input_stream: "HTTP_REQUEST_PAYLOAD:input"
{packets}
  output_stream: "LOOPBACK:loopback"
  output_stream: "HTTP_RESPONSE_PAYLOAD:output"
  input_stream_info {{
    tag_index: "LOOPBACK:0"
    back_edge: true
  }}
  node_options {{
    [type.googleapis.com/{package}.{message}] {{
{options}
    }}
  }}
  input_stream_handler {{
    input_stream_handler: "SyncSetInputStreamHandler"
    options {{
      [mediapipe.SyncSetInputStreamHandlerOptions.ext] {{
        sync_set {{
          tag_index: "LOOPBACK:0"
        }}
      }}
    }}
  }}
}}
"""
"""The graph that OVMS needs around the options: a loop that runs the calculator until the last token."""
PACKETS = {
    TEXT_GENERATION.name: ("LLM", ("LLM_NODE_RESOURCES:llm", "LLM_NODE_EXECUTION_CONTEXTS:llm_ctx")),
    SPEECH_TO_TEXT: ("S2t", ("STT_NODE_RESOURCES:s2t_servable",)),
}
"""Tasks with this graph: the name of the node, and its side packets."""


POOLING_FRAME = """\
# File created with: lean_ovms {version}
input_stream: "REQUEST_PAYLOAD:input"
output_stream: "RESPONSE_PAYLOAD:output"
node {{
  name: "{node}Executor"
  calculator: "{calculator}"
  input_side_packet: "{upper}_NODE_RESOURCES:{lower}_servable"
  input_stream: "REQUEST_PAYLOAD:input"
  output_stream: "RESPONSE_PAYLOAD:output"
  node_options {{
    [type.googleapis.com/{package}.{message}] {{
{options}
    }}
  }}
}}
"""
"""The graph around the node options of embeddings and rerank: one call for each request."""


VOICE_FRAME = """\
# File created with: lean_ovms {version}
input_stream: "HTTP_REQUEST_PAYLOAD:input"
output_stream: "HTTP_RESPONSE_PAYLOAD:output"
node {{
  name: "T2sExecutor"
  calculator: "{calculator}"
  input_side_packet: "TTS_NODE_RESOURCES:t2s_servable"
  input_stream: "HTTP_REQUEST_PAYLOAD:input"
  output_stream: "HTTP_RESPONSE_PAYLOAD:output"
  node_options {{
    [type.googleapis.com/{package}.{message}] {{
{options}
    }}
  }}
}}
"""
"""The graph around the node options of text2speech."""


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
    lines = [line for name, value in values.items() if name in ALWAYS or value not in ("", None)
             for line in _lines(name, value, task)]  # fmt: skip
    options = "\n".join(" " * 6 + line for line in lines)
    words = {"node": task.name.capitalize(), "upper": task.name.upper(), "lower": task.name}
    if task.name in PACKETS:
        node, packets = PACKETS[task.name]
        words = {"node": node, "packets": "\n".join(f'  input_side_packet: "{packet}"' for packet in packets)}
    common = {"calculator": task.calculators[0], "package": PACKAGE, "message": task.options, "options": options}
    frames = {**dict.fromkeys(PACKETS, FRAME), TEXT_TO_SPEECH: VOICE_FRAME}
    frame = frames.get(task.name, POOLING_FRAME)
    return frame.format(version=version, **common, **words)


def written_options(name: str = "") -> dict[str, Any]:
    """Returns the options that `text` writes for a task, with their defaults: to be reset once the graph has them."""
    task = task_of(name)
    assert task is not None
    ours = {RENAMED.get(name, name) for name in _fields(task)} | {*PLUGIN, "plugin_config"}
    return {row.name: row.default for row in fields(Config) if row.name in ours and row.name != "model_path"}


def _fields(task: ModelTask) -> list[str]:
    """Returns the options of a graph that are also options here, by their names in the graph."""
    known = {row.name for row in fields(Config)}
    return [name for name in fields_of(task.options) if RENAMED.get(name, name) in known]


def _values(config: Config, task: ModelTask) -> dict[str, Any]:
    """Returns options that are not the default, or that are always written; None for the others."""
    defaults = {row.name: row.default for row in fields(Config)}
    found: dict[str, Any] = {}
    for name in _fields(task):
        ours = RENAMED.get(name, name)
        value = getattr(config, ours)
        if name in ALWAYS or ours == "target_device" or value != defaults[ours]:
            found[name] = value == "true" if ours == "normalize" else value
        else:
            found[name] = None
    if (mode := found.get("pooling")) not in (None, *ENUMS["Pooling"]):
        raise StartError(f"--pooling {mode} cannot be written: Only CLS, LAST and MEAN pooling modes are supported")
    return found


def _plugin_config(config: Config) -> str:
    properties = read_object("plugin_config", config.plugin_config)
    defaults = {row.name: row.default for row in fields(Config)}
    for option, name in PLUGIN.items():
        if (value := getattr(config, option)) != defaults[option]:
            if properties.get(name, value) != value:
                raise StartError(f"--{option} and --plugin_config disagree about {name}")
            properties[name] = value
    return json.dumps(properties, ensure_ascii=False) if properties else ""


def _lines(name: str, value: Any, task: ModelTask) -> Iterator[str]:
    kind = fields_of(task.options)[name]
    if name == "voices":
        for voice, path in json.loads(value).items():
            yield f"voices {{ name: {_scalar(voice)} path: {_scalar(path)} }}"
    elif kind in MESSAGES:
        yield f"{name} {{"
        yield from ("  " + line for key, inner in json.loads(value).items() for line in _inner(key, inner))
        yield "}"
    elif kind in ENUMS:
        yield f"{name}: {value}"
    else:
        yield f"{name}: {_scalar(value)}"


def _inner(name: str, value: Any) -> Iterator[str]:
    """Returns a field of a nested message, where every string is an enum value."""
    if isinstance(value, dict):
        yield f"{name} {{"
        yield from ("  " + line for key, inner in value.items() for line in _inner(key, inner))
        yield "}"
    else:
        yield f"{name}: {value if isinstance(value, str) else _scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        mark = "'" if '"' in value and "'" not in value else '"'
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace(mark, "\\" + mark)
        return mark + escaped + mark
    return str(value)
