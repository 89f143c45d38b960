"""Which models a server should serve, from its options: one named on the command line, or those of a config file."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from ..config import PER_MODEL, Config
from ..errors import StartError
from ..repository import config_file, graph

Stat = tuple[int, int, int] | None
"""What tells that a file has changed; None: there is none."""


def stat(path: Path) -> Stat:
    """Modification time, size and inode of a file. One that we may not see is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):  # ValueError: no file can have such a name
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model that should be served, with its options.

    problem: why it cannot be. stamp: differs when the model has to be loaded again although its options are the same.
    """

    config: Config
    problem: StartError | None = None
    stamp: str = ""

    @property
    def name(self) -> str:
        """Its name in the API."""
        return self.config.served_name


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredState:
    """All models that should be served, in the order of the model list. files: what was read, as it was before."""

    models: tuple[ModelSpec, ...]
    files: dict[Path, Stat] = field(default_factory=dict)


def wish(config: Config) -> DesiredState:
    """What these options ask for. Raises StartError when the config file cannot be understood."""
    if config.config_path:
        return _from_file(config)
    if not config.model_path or config.fake_engine:
        return DesiredState(models=(ModelSpec(config=config),))
    base = Path(config.model_path)
    files = {path: stat(path) for path in (base, base / graph.FILE)}
    return DesiredState(models=(_named(config, base),), files=files)


def server(config: Config) -> Config:
    """config with what the config file says about the server as a whole. Raises StartError."""
    if not config.config_path:
        return config
    if config.model_path or config.model_name:
        raise StartError("--config_path names the models: --model_path and --model_name do not go with it")
    if config.lora_modules:
        raise StartError("--lora_modules is for one model: with --config_path each entry has its own lora_modules")
    known = {row.name for row in fields(Config)}
    found = config_file.read(config_file.location(config.config_path)).metrics
    return replace(config, **{name: value for name, value in found.items() if name in known})


def _named(config: Config, base: Path) -> ModelSpec:
    """The model of the command line: its options before the graph's, unless --task makes the graph void (as OVMS)."""
    path = base / graph.FILE
    if config.task or not os.path.isfile(path):
        return ModelSpec(config=config)
    given = {row.name: getattr(config, row.name) for row in fields(Config) if row.metadata["group"] in PER_MODEL}
    given = {row.name: given[row.name] for row in fields(Config) if given.get(row.name, row.default) != row.default}
    del given["model_path"]
    given["model_name"] = config.served_name
    try:
        text = graph.text_of(path)
        graph.tell_queue(text, path)
        return ModelSpec(config=replace(graph.applied(config, text, path, base), **given), stamp=_digest(text))
    except StartError as error:
        return ModelSpec(config=config, problem=error)


def _from_file(config: Config) -> DesiredState:
    path = config_file.location(config.config_path)
    files = {path: stat(path)}
    models = []
    for entry in config_file.read(path).entries:
        files |= {place: stat(place) for place in (entry.base, entry.graph)}
        try:
            options = config_file.options_of(entry, config)
            models.append(ModelSpec(config=options, stamp=_stamp(entry.graph)))
        except StartError as error:
            unusable = replace(config, config_path="", model_name=entry.name, model_path=str(entry.base))
            models.append(ModelSpec(config=unusable, problem=error, stamp=_stamp(entry.graph)))
    return DesiredState(models=tuple(models), files=files)


def _stamp(path: Path) -> str:
    try:
        return _digest(graph.text_of(path))
    except StartError:
        return ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
