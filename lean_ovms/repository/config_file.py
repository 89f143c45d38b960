"""OVMS's config.json: several models, in either style of list, and what it says about metrics.

What the file as a whole has wrong is an error of the file; what one model has wrong is that model's, and the others are
served. Relative paths begin at the file's directory.
https://github.com/openvinotoolkit/model_server/blob/main/docs/starting_server.md, src/schema.cpp
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..config import PER_MODEL, Config
from ..errors import StartError
from . import graph

log = logging.getLogger("lean_ovms.models")

REASON = "The configuration file is not valid."
NAME = "config.json"
IGNORED_LISTS = ("pipeline_config_list", "custom_loader_config_list", "custom_node_library_config_list")
TOP = ("model_config_list", "mediapipe_config_list", "monitoring", *IGNORED_LISTS)
PLACES = ("name", "base_path", "graph_path", "subconfig")
CLASSIC = (
    "batch_size", "shape", "layout", "mean", "scale", "color_format", "precision", "model_version_policy", "nireq",
    "allow_cache", "stateful", "idle_sequence_cleanup", "low_latency_transformation", "max_sequence_number",
    "custom_loader_options",
)  # fmt: skip
"""Options of models that are not generative: they have no meaning for a graph, in OVMS neither."""
FILES = ("draft_model_path", "cache_dir")
"""Options that are paths."""
CLOUD = ("s3://", "gs://", "az://", "azfs://", "azure://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One model of the file. where: for messages. options: those of ours that it sets."""

    where: str
    name: str
    base: Path
    graph: Path
    wants_graph: bool
    options: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A config.json, read. metrics: what monitoring says, as options of ours."""

    entries: list[Entry]
    metrics: dict[str, Any]


def location(config_path: str) -> Path:
    """The file; a directory stands for the config.json in it."""
    path = Path(config_path)
    return path / NAME if os.path.isdir(path) else path


def read(path: Path) -> File:
    """Raises StartError."""
    root = _json(path)
    if not isinstance(root, dict):
        raise _wrong(f"{path} must hold a JSON object")
    if unknown := [key for key in root if key not in TOP]:
        raise _wrong(f"{path}: {unknown[0]!r} is not a key of a configuration file ({', '.join(TOP)})")
    if not any(key in root for key in TOP[:2]):
        raise _wrong(f"{path} has no model_config_list")
    for key in IGNORED_LISTS:
        if root.get(key):
            log.warning("%s: %s is ignored: this server has no pipelines of classic models", path, key)
    entries = [_entry(path, where, one) for where, one in _listed(path, root)]
    return File(entries=_without_doubles(entries), metrics=_metrics(path, root.get("monitoring")))


def options_of(entry: Entry, config: Config) -> Config:
    """This model's options: the entry's before the graph's before the server's. Raises StartError."""
    base = replace(config, config_path="", model_name=entry.name, model_path=str(entry.base))
    if entry.wants_graph or os.path.isfile(entry.graph):  # one that we may not see is none
        text = graph.text_of(entry.graph)
        graph.tell_queue(text, entry.graph)
        base = graph.applied(base, text, entry.graph, entry.base)
    try:
        return replace(base, **entry.options)
    except StartError as error:
        raise StartError(f"{entry.where}: {error}", reason="Its options are not valid.") from None


# --- the parts of the file


def _listed(path: Path, root: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every model's object with where it stands."""
    found = []
    for key in TOP[:2]:
        entries = root.get(key, [])
        if not isinstance(entries, list):
            raise _wrong(f"{path}: {key} must be a list")
        for index, entry in enumerate(entries):
            where = f"{path}: {key}[{index}]"
            if key == "model_config_list":
                entry = _object(where, entry).get("config")
                where += ".config"
            found.append((where, _object(where, entry)))
    return found


def _entry(path: Path, where: str, one: dict[str, Any]) -> Entry:
    name = _text(where, one, "name")
    if not name:
        raise _wrong(f"{where} has no name")
    base = _text(where, one, "base_path")
    if base.startswith(CLOUD):
        raise _wrong(f"{where}: base_path {base}: models are read from local directories only")
    directory = path.parent / (base or name)
    file = _text(where, one, "graph_path")
    if one.get("subconfig") is not None:
        log.warning("%s: subconfig is ignored: it lists classic models for a graph to call", where)
    return Entry(
        where=where,
        name=name,
        base=directory,
        graph=directory / (file or graph.FILE),
        wants_graph=bool(file),
        options=_options(path, where, one),
    )


def _options(path: Path, where: str, one: dict[str, Any]) -> dict[str, Any]:
    kinds = {row.name: type(row.default) for row in fields(Config) if row.metadata["group"] in PER_MODEL}
    found: dict[str, Any] = {}
    for key, value in one.items():
        if key in PLACES:
            continue
        if key in CLASSIC:
            log.warning("%s: %s is ignored: it is for models that are not generative", where, key)
        elif key not in kinds or key in ("model_name", "model_path"):
            raise _wrong(f"{where}: {key!r} is not an option of a model")
        else:
            found[key] = _value(f"{where}.{key}", value, kinds[key])
            if key in FILES and found[key]:
                found[key] = str(path.parent / found[key])
    return found


def _value(where: str, value: Any, kind: type) -> Any:
    """A JSON value as the option's type; options that are JSON texts may stand as objects."""
    if kind is str and isinstance(value, dict):
        return json.dumps(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        words = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
        raise _wrong(f"{where} must be {words[kind]}")
    return value


def _without_doubles(entries: list[Entry]) -> list[Entry]:
    kept: dict[str, Entry] = {}
    for entry in entries:
        if entry.name in kept:
            log.warning("%s is ignored: the name %s is taken by an earlier entry", entry.where, entry.name)
        kept.setdefault(entry.name, entry)
    return list(kept.values())


def _metrics(path: Path, monitoring: Any) -> dict[str, Any]:
    """{"metrics": {"enable": bool, "metrics_list": [str]?}} as options."""
    if monitoring is None:
        return {}
    where = f"{path}: monitoring"
    metrics = _object(f"{where}.metrics", _object(where, monitoring).get("metrics"))
    enable, names = metrics.get("enable"), metrics.get("metrics_list", [])
    if type(enable) is not bool:
        raise _wrong(f"{where}.metrics.enable must be true or false")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _wrong(f"{where}.metrics.metrics_list must be a list of strings")
    if unknown := [key for key in metrics if key not in ("enable", "metrics_list")]:
        raise _wrong(f"{where}.metrics: {unknown[0]!r} is not one of enable, metrics_list")
    if not enable:
        return {}
    return {"metrics_enable": True} | ({"metrics_list": ",".join(names)} if names else {})


# --- reading


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise StartError(f"there is no configuration file at {path}", reason="Config file not found.") from None
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}", reason="Config file cannot be opened.") from None
    except (ValueError, RecursionError) as error:
        raise _wrong(f"{path} is not valid JSON: {error}") from None


def _object(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(f"{where} must be an object")
    return value


def _text(where: str, one: dict[str, Any], key: str) -> str:
    value = one.get(key, "")
    if not isinstance(value, str):
        raise _wrong(f"{where}.{key} must be a string")
    return value


def _wrong(message: str) -> StartError:
    return StartError(message, reason=REASON)
