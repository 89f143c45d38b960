"""A graph.pbtxt as options of a model: which of the LLM node's options is which of ours.

Most have the same name. The others are spelled here, and so is what has no effect.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ..config import Config
from ..errors import StartError
from .task import SERVED

log = logging.getLogger("lean_ovms.models")

FILE = "graph.pbtxt"
REASON = "Its graph is not valid."
RENAMED = {"models_path": "model_path", "device": "target_device", "draft_models_path": "draft_model_path"}
PATHS = ("model_path", "draft_model_path")
"""Relative ones begin at the graph's base path."""
QUEUE = re.compile(r"^#\s*OVMS_GRAPH_QUEUE_MAX_SIZE\s*:\s*(\S+)", re.MULTILINE)
NO_EFFECT = {
    "chat_template_mode": "templates are always rendered by Jinja",
    "draft_block_size": "the device decides",
    "draft_dynamic_split_fuse": "prompts are not split with a draft model",
}
MAX_BYTES = 1 << 20
"""A graph has a few thousand bytes."""


def text_of(path: Path) -> str:
    """A graph's text. Raises StartError."""
    try:
        data = path.read_bytes()
        if len(data) > MAX_BYTES:
            raise StartError(f"{path} has more than {MAX_BYTES} bytes", reason=REASON)
        return data.decode()
    except UnicodeDecodeError:
        raise StartError(f"{path} is not a text file", reason=REASON) from None
    except (FileNotFoundError, ValueError):  # ValueError: no file can have such a name
        raise StartError(f"there is no graph at {path}", reason="Its graph is missing.") from None
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}", reason="Its graph cannot be read.") from None


def applied(config: Config, text: str, path: Path, base: Path) -> Config:
    """config with what the graph sets, its task included. path: the graph's, for errors. Raises StartError."""
    from .pbtxt import llm_options  # protobuf takes 30 ms to import, for servers with graphs only

    try:
        return replace(config, **_ours(llm_options(text), path, base), task=SERVED)
    except StartError as error:
        raise StartError(f"{path}: {error}", reason=error.reason) from None


def _ours(options: dict[str, Any], path: Path, base: Path) -> dict[str, Any]:
    known = {row.name for row in fields(Config)}
    found: dict[str, Any] = {}
    for name, value in options.items():
        ours = RENAMED.get(name, name)
        if ours not in known:
            log.warning("%s: %s has no effect here: %s", path, name, NO_EFFECT.get(name, "it is not supported"))
        elif ours in PATHS:
            found[ours] = str(base / value)
        else:
            found[ours] = json.dumps(value) if isinstance(value, dict) else value
    return found


def tell_queue(text: str, path: Path) -> None:
    """Say that the pool of graphs, which OVMS sizes by a comment, has no counterpart."""
    if size := QUEUE.search(text):
        log.debug("%s: OVMS_GRAPH_QUEUE_MAX_SIZE %s has no effect: no graphs are built here", path, size[1])
