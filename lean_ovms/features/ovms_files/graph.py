"""Reads a graph.pbtxt: its text, and the options of its only node of a known task as options of a model.

graph_schema.py has the tables of names, pbtxt.py the parser, and graph_writer.py writes graphs.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

from ...config import Config, listed
from ...errors import StartError
from ...util.files import read_bytes
from .graph_schema import INVALID, schema_of

log = logging.getLogger("lean_ovms.models")

QUEUE = re.compile(r"^#\s*OVMS_GRAPH_QUEUE_MAX_SIZE\s*:\s*(\S+)", re.MULTILINE)
"""Matches the comment that sets the size of OVMS's pool of graphs."""
MAX_BYTES = 1 << 20
"""The largest size of a graph in bytes; usual ones have a few thousand."""


def text_of(path: Path) -> str:
    """Returns the text of a graph. Raises StartError."""
    try:
        data = read_bytes(path)
        if len(data) > MAX_BYTES:
            raise StartError(f"{path} has more than {MAX_BYTES} bytes", reason=INVALID)
        return data.decode()
    except UnicodeDecodeError:
        raise StartError(f"{path} is not a text file", reason=INVALID) from None
    except (FileNotFoundError, ValueError):  # a ValueError if it is not a possible file name
        raise StartError(f"the graph {path} does not exist", reason="Its graph is missing.") from None
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}", reason="Its graph cannot be read.") from None


def applied(config: Config, text: str, path: Path, base: Path) -> Config:
    """Adds the options of a graph to other options.

    Args:
        config: The other options.
        text: The graph.
        path: The path of the graph, for messages.
        base: The directory to which its paths are relative.

    Returns:
        The options, including those of the graph and the task.

    Raises:
        StartError: The graph is not valid.
    """
    from .pbtxt import node_options  # late, because protobuf takes 30 ms to import

    if size := QUEUE.search(text):
        log.debug("%s: OVMS_GRAPH_QUEUE_MAX_SIZE %s has no effect: this server does not build graphs", path, size[1])
    try:
        task, options = node_options(text, config.composition)
        return config.replace(**_config_options(config, options, path, base), task=task.name)
    except StartError as error:
        raise StartError(f"{path}: {error}", reason=error.reason) from None


def _config_options(config: Config, options: dict[str, Any], path: Path, base: Path) -> dict[str, Any]:
    """Returns the options of a graph's node under the names that they have here, and logs those without an effect.

    Args:
        config: The other options.
        options: The options of the node.
        path: The path of the graph, for messages.
        base: The directory to which its paths are relative.
    """
    known, schema = {row.name for row in listed(config.without)}, schema_of(config.composition)
    found: dict[str, Any] = {}
    for name, value in options.items():
        row, ours = schema.options.get(name), schema.name_here(name)
        if ours not in known:
            log.warning("%s: %s has no effect: %s", path, name, schema.ignored.get(name, "it is not supported"))
        elif row is not None and row.read is not None:
            found[ours] = row.read(value, base)
        elif ours == "target_device" and not value:
            continue
        else:
            found[ours] = json.dumps(value) if isinstance(value, dict) else value
    return found
