"""Writes a graph.pbtxt for OVMS and for this server from the options of a model, which is the reverse of graph.py.

Options are written if they differ from their defaults, and some always, as in OVMS.
https://github.com/openvinotoolkit/model_server/blob/main/src/graph_export/graph_export.cpp
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...composition import TEXT_GENERATION
from ...config import Config, listed
from ...config.options import PROPERTIES, read_object
from ...errors import StartError
from ...manifest import TaskRow
from .graph_schema import COMPANIONS, GRAPHS, PACKAGE, GraphRow, GraphSchema, fields_of, schema_of

ALWAYS = frozenset({"max_num_seqs", "models_path", "enable_prefix_caching", "cache_size"})
PLUGIN = {**PROPERTIES, "max_prompt_len": "MAX_PROMPT_LEN", "num_streams": "NUM_STREAMS"}
"""The options for which a graph has no field. They are written as OpenVINO properties in plugin_config."""

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
"""The text that OVMS needs around the options."""
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


def graph_of(config: Config) -> tuple[TaskRow, GraphRow] | None:
    """Returns the options' task ("" for text generation) and the form of its graphs; None if it has no graphs."""
    task = config.composition.task(config.task)
    return (task, GRAPHS[task.name]) if task.name in GRAPHS else None


def _defaults(config: Config) -> dict[str, Any]:
    """Returns the default of each option."""
    return {row.name: row.default for row in listed(config.without)}


def text(config: Config, models_path: str, companions: Mapping[str, str], version: str) -> str:
    """Returns the text of the graph for these options and their task.

    Args:
        config: The options.
        models_path: The model's path, relative to the graph.
        companions: The paths of further models, relative to the graph, by their options.
        version: The version of this program.

    Raises:
        StartError: OVMS could not read the graph.
    """
    found = graph_of(config)
    if found is None:
        raise StartError(f"a graph for the task {config.task} cannot be written: OVMS does not support this task")
    if config.pipeline_type in ("PAGED", "ASR"):
        raise StartError(
            f"--pipeline_type {config.pipeline_type} cannot be written to a graph: OVMS does not support it"
        )
    task, graph = found
    schema = schema_of(config.composition)
    kinds = fields_of(schema.messages[graph.message])
    values = {**_values(config, kinds), "models_path": models_path}
    if task is TEXT_GENERATION:
        values |= {field: companions.get(option, "") for field, option in COMPANIONS.items()}
    values["plugin_config"] = _plugin_config(config)
    lines = [line for name, value in values.items() if name in ALWAYS or value not in ("", None)
             for line in _lines(name, value, kinds[name], schema)]  # fmt: skip
    http = "HTTP_" if graph.http else ""
    side = "\n".join(f'  input_side_packet: "{packet}"' for packet in graph.packets)
    return FRAME.format(
        version=version,
        queue=QUEUE if graph.loops else "",
        http=http,
        node=graph.node,
        calculator=graph.calculators[0],
        streams=(LOOP_STREAMS if graph.loops else STREAMS).format(http=http, packets=side),
        package=PACKAGE,
        message=graph.message,
        options="\n".join(" " * 6 + line for line in lines),
        handler=LOOP_HANDLER if graph.loops else "",
    )


def written_options(config: Config) -> dict[str, Any]:
    """Returns the options that `text` writes for the task, with the defaults that they get once the graph has them."""
    found = graph_of(config)
    assert found is not None
    defaults = _defaults(config)
    schema = schema_of(config.composition)
    kinds = fields_of(schema.messages[found[1].message])
    ours = {*map(schema.name_here, kinds), *PLUGIN, "plugin_config"}
    return {name: value for name, value in defaults.items() if name in ours and name != "model_path"}


def _values(config: Config, names: Iterable[str]) -> dict[str, Any]:
    """Returns the named options' values if they are not the default or always written; None for all others."""
    found: dict[str, Any] = {}
    defaults, schema = _defaults(config), schema_of(config.composition)
    for name in names:
        row, ours = schema.options.get(name), schema.name_here(name)
        if ours not in defaults:
            continue
        value = config.value(ours)
        if name in ALWAYS or ours == "target_device" or value != defaults[ours]:
            found[name] = value if row is None or row.write is None else row.write(value)
        else:
            found[name] = None
    return found


def _plugin_config(config: Config) -> str:
    properties = read_object("plugin_config", config.plugin_config)
    defaults = _defaults(config)
    for option, name in PLUGIN.items():
        if (value := config.given(option)) != defaults.get(option):
            if properties.get(name, value) != value:
                raise StartError(f"--{option} and {name} of --plugin_config cannot be used together")
            properties[name] = value
    return json.dumps(properties, ensure_ascii=False) if properties else ""


def _lines(name: str, value: Any, kind: str, schema: GraphSchema) -> Iterator[str]:
    if isinstance(value, list):
        for members in value:
            yield f"{name} {{ {' '.join(f'{key}: {_scalar(member)}' for key, member in members.items())} }}"
    elif kind in schema.messages:
        yield from _message(name, json.loads(value))
    else:
        yield f"{name}: {value if kind in schema.enums else _scalar(value)}"


def _message(name: str, members: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of a nested message, in which every string is an enumeration value."""
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
