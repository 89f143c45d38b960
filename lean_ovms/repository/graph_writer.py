"""Writing a graph.pbtxt from the options of a model, for OVMS and for this server. The reverse of `graph.py`.

Options that a graph can hold are written when they are not the default, and some always, as in OVMS.
https://github.com/openvinotoolkit/model_server/blob/main/src/graph_export/graph_export.cpp
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from ..config import Config
from ..errors import StartError
from ..options import read_object
from .graph_schema import ENUMS, MESSAGES, PACKAGE, RENAMED, fields_of
from .task import TEXT_GENERATION

ALWAYS = frozenset({"max_num_seqs", "models_path", "enable_prefix_caching", "cache_size"})
PLUGIN = {
    "kv_cache_precision": "KV_CACHE_PRECISION",
    "max_prompt_len": "MAX_PROMPT_LEN",
    "model_distribution_policy": "MODEL_DISTRIBUTION_POLICY",
    "cache_dir": "CACHE_DIR",
}
"""Options that a graph has no field for: they are written as OpenVINO properties in plugin_config."""

FRAME = """\
# File created with: lean_ovms {version}
# OVMS_GRAPH_QUEUE_MAX_SIZE: AUTO
input_stream: "HTTP_REQUEST_PAYLOAD:input"
output_stream: "HTTP_RESPONSE_PAYLOAD:output"
node {{
  name: "LLMExecutor"
  calculator: "{calculator}"
  input_stream: "LOOPBACK:loopback"
  input_stream: "HTTP_REQUEST_PAYLOAD:input"
  input_side_packet: "LLM_NODE_RESOURCES:llm"
  input_side_packet: "LLM_NODE_EXECUTION_CONTEXTS:llm_ctx"
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


def text(config: Config, models_path: str, draft_models_path: str, version: str) -> str:
    """The graph for these options. Both paths are relative to the graph. Raises StartError."""
    if config.pipeline_type == "PAGED":
        raise StartError("--pipeline_type PAGED cannot be written: OVMS, which reads graphs too, does not know it")
    values = {**_values(config), "models_path": models_path, "draft_models_path": draft_models_path}
    values["plugin_config"] = _plugin_config(config)
    lines = [line for name, value in values.items() if name in ALWAYS or value not in ("", None)
             for line in _lines(name, value)]  # fmt: skip
    options = "\n".join(" " * 6 + line for line in lines)
    calculator, message = TEXT_GENERATION.calculators[0], TEXT_GENERATION.options
    return FRAME.format(version=version, options=options, calculator=calculator, package=PACKAGE, message=message)


def written_options() -> dict[str, Any]:
    """The options that `text` writes, with their defaults: to be reset once the graph has them."""
    ours = {RENAMED.get(name, name) for name in _fields()} | {*PLUGIN, "plugin_config"}
    return {row.name: row.default for row in fields(Config) if row.name in ours and row.name != "model_path"}


def _fields() -> list[str]:
    """The options of a graph that are also options here, by their names in the graph."""
    known = {row.name for row in fields(Config)}
    return [name for name in fields_of(TEXT_GENERATION.options) if RENAMED.get(name, name) in known]


def _values(config: Config) -> dict[str, Any]:
    """Options that are not the default, or that are always written; None for the others."""
    defaults = {row.name: row.default for row in fields(Config)}
    found: dict[str, Any] = {}
    for name in _fields():
        ours = RENAMED.get(name, name)
        value = getattr(config, ours)
        found[name] = value if name in ALWAYS or ours == "target_device" or value != defaults[ours] else None
    return found


def _plugin_config(config: Config) -> str:
    properties = read_object("plugin_config", config.plugin_config)
    for option, name in PLUGIN.items():
        if value := getattr(config, option):
            if properties.get(name, value) != value:
                raise StartError(f"--{option} and --plugin_config disagree about {name}")
            properties[name] = value
    return json.dumps(properties, ensure_ascii=False) if properties else ""


def _lines(name: str, value: Any) -> Iterator[str]:
    kind = fields_of(TEXT_GENERATION.options)[name]
    if kind in MESSAGES:
        yield f"{name} {{"
        yield from ("  " + line for key, inner in json.loads(value).items() for line in _inner(key, inner))
        yield "}"
    elif kind in ENUMS:
        yield f"{name}: {value}"
    else:
        yield f"{name}: {_scalar(value)}"


def _inner(name: str, value: Any) -> Iterator[str]:
    """A field of a nested message, where every string is an enum value."""
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
