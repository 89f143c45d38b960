"""Which models a server should serve, from its options: one, those of a config file, or those of a repository.

The embedded demo model is served when no option points to a model, and under its own name only: whoever has misspelt an
option must not get its answers for those of another model.
"""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from ..config import PER_MODEL, Config
from ..errors import StartError, WrongOptions
from ..observability.logging import safe
from ..repository import config_file, graph, listing

log = logging.getLogger("lean_ovms.models")

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
    announced: it is listed while it loads, too.
    """

    config: Config
    problem: StartError | None = None
    stamp: str = ""
    announced: bool = False

    @property
    def name(self) -> str:
        """Its name in the API."""
        return self.config.served_name


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredState:
    """All models that should be served, in the order of the model list. files: what was read, as it was before.

    required: a model that does not load ends the start.
    """

    models: tuple[ModelSpec, ...]
    files: dict[Path, Stat] = field(default_factory=dict)
    required: bool = False


def wish(config: Config) -> DesiredState:
    """What these options ask for, as server() left them. Raises StartError when that cannot be understood."""
    if config.config_path:
        return _from_file(config)
    if config.model_repository_path and not config.model_path:
        return _from_repository(config)
    if not config.model_path or config.fake_engine:
        return DesiredState(models=(ModelSpec(config=config),), required=True)
    base = Path(config.model_path)
    files = {path: stat(path) for path in (base, base / graph.FILE)}
    return DesiredState(models=(_named(config, base),), files=files, required=True)


def server(config: Config) -> Config:
    """The server's options: of those that point to models the one that counts, and what a config file says about the
    server as a whole. Raises StartError."""
    config = _pointed(config)
    return _with_metrics(config) if config.config_path else config


def _pointed(config: Config) -> Config:
    """config with config_path or model_path set by what stands for them; with neither it means the demo model, or all
    models of the repository. Raises WrongOptions."""
    if config.config_path:
        if config.model_path or config.model_name:
            raise WrongOptions("--config_path names the models: --model_path and --model_name do not go with it")
        _only_one_has_adapters(config, "with --config_path each entry has its own lora_modules")
        return config
    if config.model_path:
        return config
    if config.source_model or config.model_repository_path:
        return _in_repository(config)
    if config.fake_engine:
        return config
    if config.model_name:
        raise WrongOptions(
            f"--model_name {safe(config.model_name)} points to no model: say where it is with --model_path DIR, "
            "or in which directory of models with --model_repository_path DIR"
        )
    log.warning(
        "no option points to a model: the small demo model is served, as %s; --model_path DIR serves another",
        config.served_name,
    )
    return config


def _in_repository(config: Config) -> Config:
    """The model that is named, or else the config.json in the repository, or else all that is in it."""
    repository, source = Path(config.model_repository_path), config.source_model
    if source and not config.model_repository_path:
        raise WrongOptions("--source_model needs --model_repository_path")
    if name := source or config.model_name:
        path = listing.place(repository, name)
        return replace(config, model_path=str(path), model_name=config.model_name or name, source_model="")
    file = repository / config_file.NAME
    if os.path.isfile(file) and not listing.is_model(repository):  # a model has a config.json of another kind
        _only_one_has_adapters(config, f"with {file} each entry has its own lora_modules")
        return replace(config, config_path=str(file))
    _only_one_has_adapters(config, "--model_name says which of --model_repository_path")
    return config


def _only_one_has_adapters(config: Config, otherwise: str) -> None:
    if config.lora_modules:
        raise WrongOptions(f"--lora_modules is for one model: {otherwise}")


def _with_metrics(config: Config) -> Config:
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
        return ModelSpec(config=replace(graph.applied(config, text, path, base), **given), stamp=_digest(text))
    except StartError as error:
        return ModelSpec(config=config, problem=error)


def _from_repository(config: Config) -> DesiredState:
    """Every model of the repository, each as --model_name would serve it."""
    repository = Path(config.model_repository_path)
    files: dict[Path, Stat] = {}
    names = listing.models_of(repository, visit=lambda path: files.setdefault(path, stat(path)))
    log.info("%s has %d model%s: %s", repository, len(names), "s" * (len(names) > 1), listing.abbreviate(names))
    models = []
    for name in names:
        base = repository / name
        files |= {place: stat(place) for place in (base, base / graph.FILE)}
        try:
            one = _named(replace(config, model_repository_path="", model_path=str(base), model_name=name), base)
            models.append(replace(one, announced=True))
        except StartError as error:  # no text can be such a name
            log.error("%s is left out: %s", safe(str(base)), error)
    return DesiredState(models=tuple(models), files=files)


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
