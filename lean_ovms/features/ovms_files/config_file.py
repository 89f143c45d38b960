"""Reads OVMS's config.json: several models, in either of its two lists, and the options of metrics.

An error in the file as a whole is raised. An error in one model's options concerns only that model, and the others are
served. Relative paths are relative to the file's directory.
https://github.com/openvinotoolkit/model_server/blob/main/docs/starting_server.md, src/schema.cpp
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config import PER_MODEL, Config, listed
from ...config.options import from_json
from ...errors import StartError
from ...util import files
from . import graph
from .feature import CONFIG, GRAPH

log = logging.getLogger("lean_ovms.models")

REASON = "The configuration file is not valid."
IGNORED_LISTS = ("pipeline_config_list", "custom_loader_config_list", "custom_node_library_config_list")
MODEL_LISTS = ("model_config_list", "mediapipe_config_list")
"""The lists of models. In the first, to which models are added, an entry is one level deeper; older files have graphs
in the second."""
IDLE = "idle_unload_timeout_seconds"
"""The key in the first OVMS releases with idle servable management; later ones have a flag instead."""
KEYS = (*MODEL_LISTS, "monitoring", IDLE, *IGNORED_LISTS)
ENTRY_KEYS = ("name", "base_path", "graph_path", "subconfig")
"""The keys of an entry that are not options."""
FROM_ENTRY = ("model_name", "model_path")
"""The options that an entry sets by its name and base_path."""
CLASSIC = (
    "batch_size", "shape", "layout", "mean", "scale", "color_format", "precision", "model_version_policy", "nireq",
    "allow_cache", "stateful", "idle_sequence_cleanup", "low_latency_transformation", "max_sequence_number",
    "custom_loader_options",
)  # fmt: skip
"""The options of models that are not generative, which OVMS ignores for graphs, too."""
CLOUD = ("s3://", "gs://", "az://", "azfs://", "azure://")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """A model in the file."""

    where: str
    """The place in the file, for messages."""
    name: str
    """The name of the model in the API."""
    base: Path
    """The directory to which the entry's paths are relative."""
    graph: Path
    """The path of the model's graph."""
    wants_graph: bool
    """Whether the file names the graph, so that it must exist."""
    options: dict[str, Any]
    """The options that it sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """The content of a config.json."""

    entries: list[ConfigEntry]
    """The models, in the order of the file."""
    options: dict[str, Any]
    """The options for the whole server."""


def model_options(config: Config) -> dict[str, Any]:
    """Returns the options of one model that differ from their defaults."""
    rows = (row for row in listed(config.without) if row.metadata["group"] in PER_MODEL)
    return {row.name: value for row in rows if (value := config.value(row.name)) != row.default}


def location(config_path: str) -> Path:
    """Returns the path of the file; for a directory, that of the config.json in it."""
    path = Path(config_path)
    return path / CONFIG if os.path.isdir(path) else path


def read(path: Path) -> ConfigFile:
    """Reads the file. Raises StartError."""
    root = load(path)
    if not isinstance(root, dict):
        raise _invalid(f"{path} must contain a JSON object")
    if unknown := [key for key in root if key not in KEYS]:
        raise _invalid(
            f"{path}: {unknown[0]!r} is not a key of a configuration file ({', '.join(KEYS)}){_near(unknown[0], KEYS)}"
        )
    if not any(key in root for key in MODEL_LISTS):
        raise _invalid(f"{path} has no {MODEL_LISTS[0]}")
    for key in IGNORED_LISTS:
        if root.get(key):
            log.warning("%s: %s is ignored: pipelines of models for classical inference are not supported", path, key)
    entries = [_entry(path, where, item) for where, item in _items(path, root)]
    options = _metrics(path, root.get("monitoring")) | _idle_timeout(path, root.get(IDLE))
    return ConfigFile(entries=_without_duplicates(entries), options=options)


def options_of(entry: ConfigEntry, config: Config) -> Config:
    """Returns the options of a model: those of its entry, then of its graph, then of the server. Raises StartError."""
    base = config.replace(config_path="", model_name=entry.name, model_path=str(entry.base))
    if entry.wants_graph or os.path.isfile(entry.graph):  # also False if there is no permission to read it
        base = graph.applied(base, graph.text_of(entry.graph), entry.graph, entry.base)
    try:
        return base.replace(**entry.options)
    except StartError as error:
        raise StartError(f"{entry.where}: {error}", reason="Its options are not valid.") from None


# --- the parts of the file


def _items(path: Path, root: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Returns the object of every model, with its place in the file."""
    found = []
    for key in MODEL_LISTS:
        entries = root.get(key, [])
        if not isinstance(entries, list):
            raise _invalid(f"{path}: {key} must be a list")
        for index, entry in enumerate(entries):
            where = f"{path}: {key}[{index}]"
            if key == MODEL_LISTS[0]:
                entry = _object(where, entry).get("config")
                where += ".config"
            found.append((where, _object(where, entry)))
    return found


def _entry(path: Path, where: str, item: dict[str, Any]) -> ConfigEntry:
    name = _text(where, item, "name")
    if not name:
        likely = next((f": did you mean name by {key!r}?" for key in item if _near(key, ["name"])), "")
        raise _invalid(f"{where} has no name{likely}")
    base = _text(where, item, "base_path")
    if base.startswith(CLOUD):
        raise _invalid(f"{where}: base_path {base}: models are only read from local directories")
    directory = path.parent / (base or name)
    file = _text(where, item, "graph_path")
    if item.get("subconfig") is not None:
        log.warning("%s: subconfig is ignored: it lists models for classical inference, which are not supported", where)
    return ConfigEntry(
        where=where,
        name=name,
        base=directory,
        graph=directory / (file or GRAPH),
        wants_graph=bool(file),
        options=_options(path, where, item),
    )


def _options(path: Path, where: str, item: dict[str, Any]) -> dict[str, Any]:
    rows = {row.name: row for row in listed() if row.metadata["group"] in PER_MODEL}
    found: dict[str, Any] = {}
    for key, value in item.items():
        if key in ENTRY_KEYS:
            continue
        if key in CLASSIC:
            log.warning("%s: %s is ignored: it is for models of classical inference", where, key)
        elif key not in rows or key in FROM_ENTRY:
            known = [*(rows.keys() - set(FROM_ENTRY)), *ENTRY_KEYS]
            raise _invalid(f"{where}: {key!r} is not an option of a model{_near(key, known)}")
        else:
            found[key] = _value(f"{where}.{key}", value, type(rows[key].default))
            if rows[key].metadata["path"] and found[key]:
                found[key] = str(path.parent / found[key])
    return found


def _near(key: str, known: Iterable[str]) -> str:
    """Returns a question that suggests a similar name; "" if there is none."""
    found = difflib.get_close_matches(key, known, 1)
    return f": did you mean {found[0]}?" if found else ""


def _value(where: str, value: Any, kind: type) -> Any:
    try:
        return from_json(value, kind)
    except ValueError as error:
        raise _invalid(f"{where} must be {error}") from None


def _without_duplicates(entries: list[ConfigEntry]) -> list[ConfigEntry]:
    kept: dict[str, ConfigEntry] = {}
    for entry in entries:
        if entry.name in kept:
            log.warning("%s is ignored: an earlier entry already has the name %s", entry.where, entry.name)
        kept.setdefault(entry.name, entry)
    return list(kept.values())


def _idle_timeout(path: Path, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if type(value) is not int or value < 0:
        raise _invalid(f"{path}: {IDLE} must be a whole number of seconds, 0 for none")
    return {"model_idle_timeout_s": float(value)}


def _metrics(path: Path, monitoring: Any) -> dict[str, Any]:
    """Returns the options set by {"metrics": {"enable": bool, "metrics_list": [str]?}}."""
    if monitoring is None:
        return {}
    where = f"{path}: monitoring"
    metrics = _object(f"{where}.metrics", _object(where, monitoring).get("metrics"))
    enable, names = metrics.get("enable"), metrics.get("metrics_list", [])
    if type(enable) is not bool:
        raise _invalid(f"{where}.metrics.enable must be true or false")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _invalid(f"{where}.metrics.metrics_list must be a list of strings")
    if unknown := [key for key in metrics if key not in ("enable", "metrics_list")]:
        raise _invalid(f"{where}.metrics: {unknown[0]!r} is not one of enable, metrics_list")
    if not enable:
        return {}
    return {"metrics_enable": True} | ({"metrics_list": ",".join(names)} if names else {})


# --- reading


def load(path: Path) -> Any:
    """Returns the JSON value in the file. Raises StartError."""
    try:
        return files.read(path, files.unique)
    except FileNotFoundError:
        raise StartError(f"the configuration file {path} does not exist", reason="Config file not found.") from None
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}", reason="Config file cannot be opened.") from None
    except ValueError as error:
        raise _invalid(f"{path} is not valid JSON: {error}") from None


def _object(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _invalid(f"{where} must be an object")
    return value


def _text(where: str, item: dict[str, Any], key: str) -> str:
    value = item.get(key, "")
    if not isinstance(value, str):
        raise _invalid(f"{where}.{key} must be a string")
    return value


def _invalid(message: str) -> StartError:
    return StartError(message, reason=REASON)
