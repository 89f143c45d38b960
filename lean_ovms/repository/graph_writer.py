"""A graph.pbtxt from options: what OVMS and this server read beside a model. The reverse of deployment/graph.py.

Options that a graph can hold are written when they are not the default, and some always, as OVMS does.
https://github.com/openvinotoolkit/model_server/blob/main/src/graph_export/graph_export.cpp
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from ..config import Config
from ..errors import StartError
from .graph import RENAMED

ALWAYS = frozenset({"max_num_seqs", "models_path", "enable_prefix_caching", "cache_size"})
PLUGIN = {
    "kv_cache_precision": "KV_CACHE_PRECISION",
    "max_prompt_len": "MAX_PROMPT_LEN",
    "model_distribution_policy": "MODEL_DISTRIBUTION_POLICY",
    "cache_dir": "CACHE_DIR",
}
"""Options that have no field in a graph but a property of the plugin."""

FRAME = """\
# File created with: lean_ovms {version}
# OVMS_GRAPH_QUEUE_MAX_SIZE: AUTO
input_stream: "HTTP_REQUEST_PAYLOAD:input"
output_stream: "HTTP_RESPONSE_PAYLOAD:output"
node {{
  name: "LLMExecutor"
  calculator: "HttpLLMCalculator"
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
    [type.googleapis.com/mediapipe.LLMCalculatorOptions] {{
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
"""What OVMS needs around the options: a loop that lets the calculator run on while tokens come."""


def text(config: Config, models_path: str, draft_models_path: str, version: str) -> str:
    """The graph for these options. Both paths are relative to the graph. Raises StartError."""
    values = {**_values(config), "models_path": models_path, "draft_models_path": draft_models_path}
    values["plugin_config"] = _plugin_config(config)
    lines = [line for name, value in values.items() if name in ALWAYS or value not in ("", None)
             for line in _lines(name, value)]  # fmt: skip
    return FRAME.format(version=version, options="\n".join(" " * 6 + line for line in lines))


def defaulted(config: Config) -> dict[str, Any]:
    """The options of config that `text` has written, with their defaults: from now on the graph says them."""
    plugin = {name for name in PLUGIN if hasattr(config, name)} | {"plugin_config"}
    ours = {RENAMED.get(name, name) for name in _fields()} | plugin
    return {row.name: row.default for row in fields(Config) if row.name in ours and row.name != "model_path"}


def _fields() -> list[str]:
    """The options that a graph may have, of those that we have."""
    from .pbtxt import MESSAGES  # protobuf is for those who meet graphs

    known = {row.name for row in fields(Config)}
    names = [field.split()[-1] for field in MESSAGES["LLMCalculatorOptions"].split(", ")]
    return [name for name in names if RENAMED.get(name, name) in known]


def _values(config: Config) -> dict[str, Any]:
    """Options that are not the default, and those that always are written; None for the others."""
    defaults = {row.name: row.default for row in fields(Config)}
    found: dict[str, Any] = {}
    for name in _fields():
        ours = RENAMED.get(name, name)
        value = getattr(config, ours)
        found[name] = value if name in ALWAYS or ours == "target_device" or value != defaults[ours] else None
    return found


def _plugin_config(config: Config) -> str:
    try:
        properties = json.loads(config.plugin_config or "{}")
    except ValueError as error:
        raise StartError(f"--plugin_config is not a JSON object: {error}") from None
    if not isinstance(properties, dict):
        raise StartError("--plugin_config is not a JSON object")
    for option, name in PLUGIN.items():
        value = getattr(config, option, None)
        if value:
            if properties.get(name, value) != value:
                raise StartError(f"--{option} and --plugin_config say different things about {name}")
            properties[name] = value
    return json.dumps(properties, ensure_ascii=False) if properties else ""


def _lines(name: str, value: Any) -> Iterator[str]:
    if name.endswith("_config") and name != "plugin_config":
        yield f"{name} {{"
        yield from ("  " + line for key, inner in json.loads(value).items() for line in _inner(key, inner))
        yield "}"
    elif name in ("pipeline_type", "chat_template_mode"):
        yield f"{name}: {value}"
    else:
        yield f"{name}: {_scalar(value)}"


def _inner(name: str, value: Any) -> Iterator[str]:
    """A field of an inner message, whose texts are all names of enums."""
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
