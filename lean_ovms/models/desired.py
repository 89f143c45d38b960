"""Which models a server should serve, from its options: one, those of a config file, or those of a repository.

The embedded demo model is served when no option points to a model, and under its own name only: with a misspelt option
its answers must not pass for those of another model.
"""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..composition import TEXT_GENERATION, compose
from ..config import PER_MODEL, Config, listed
from ..errors import StartError, WrongOptions
from ..manifest import DemoModel
from ..observability.logging import safe
from ..repository import model_dir
from ..repository.model_dir import single_files
from ..util.files import FileStat, file_stat
from ..util.plurals import counted

log = logging.getLogger("lean_ovms.models")

PERMANENT = "permanent"
"""OVMS's name of the group whose models are never unloaded."""

DEMO_IDLE_TIMEOUT_S = 300.0
"""The idle time in seconds after which a further demo model is unloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model that should be served."""

    config: Config
    """The options of the model."""
    problem: StartError | None = None
    """Why it cannot be served."""
    stamp: str = ""
    """What changes when the model has to be loaded again although its options are the same."""
    announced: bool = False
    """Whether it is listed while it loads, too."""
    on_demand: bool = False
    """Whether its first request loads it."""
    permanent: bool = True
    """Whether it stays in memory."""

    @property
    def group(self) -> str:
        """The models that are in memory together; "" for this one alone."""
        return self.config.group_name

    @property
    def name(self) -> str:
        """The model's name in the API."""
        return self.config.served_name


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredState:
    """All models that should be served."""

    models: tuple[ModelSpec, ...]
    """The models, in the order of the model list."""
    files: dict[Path, FileStat] = field(default_factory=dict)
    """The files that were read, with their state before."""
    required: bool = False
    """Whether a model that does not load stops the start."""
    max_loaded: int = 0
    """How many groups are in memory at once; 0: as many as the memory holds."""


def desired_state(config: Config) -> DesiredState:
    """Returns the models that the options of server_config() configure. Raises StartError if they cannot be parsed."""
    state = _desired_state(config)
    return _with_loading(
        config, replace(state, models=_without_clashes([_with_task(_with_file(spec)) for spec in state.models]))
    )


def _without_clashes(specs: list[ModelSpec]) -> tuple[ModelSpec, ...]:
    """Returns the models, with a problem where an alias is a name of another one."""
    owners = {spec.name: spec for spec in specs}
    found = []
    for spec in specs:
        taken = [name for name in spec.config.served_names[1:] if owners.setdefault(name, spec) is not spec]
        if taken and spec.problem is None:
            other = owners[taken[0]].name
            spec = replace(
                spec, problem=WrongOptions(f"model_aliases: {safe(taken[0])} is a name of the model {safe(other)}")
            )
        found.append(spec)
    return tuple(found)


def _with_loading(config: Config, state: DesiredState) -> DesiredState:
    """Returns the models with when each is loaded and unloaded, as --load_models says."""
    grouped = any(spec.group not in ("", PERMANENT) for spec in state.models)
    several = (len(state.models) > 1 or config.pulls_at_run_time) and not state.required
    limited = grouped or config.max_loaded_models > 0 or any(spec.config.model_idle_timeout_s for spec in state.models)
    repository = bool(config.model_repository_path) and not config.config_path
    on_demand = config.load_models == "request" or (
        config.load_models == "auto" and several and (repository or limited)
    )
    models = tuple(_loaded_as(spec, on_demand or spec.on_demand) for spec in state.models)
    return replace(state, models=models, max_loaded=config.max_loaded_models or int(grouped))


def _loaded_as(spec: ModelSpec, on_demand: bool) -> ModelSpec:
    fixed, unloads = spec.group == PERMANENT, on_demand or spec.config.model_idle_timeout_s > 0
    announced = spec.announced or on_demand
    return replace(spec, on_demand=on_demand and not fixed, announced=announced, permanent=fixed or not unloads)


def _with_file(spec: ModelSpec) -> ModelSpec:
    """Returns the model by its file where that is all that its folder has, with a problem if there are several."""
    config = spec.config
    files = single_files(config.model_dir) if config.model_path and not config.fake_engine else []
    if not files:
        return spec
    if len(files) > 1:
        from ..repository import listing

        names = listing.abbreviate([str(file.relative_to(config.model_dir)) for file in files])
        kind = " or ".join(row.name for row in compose().formats)
        wrong = WrongOptions(f"--model_path {config.model_path} has several {kind} files, name one: {names}")
        return replace(spec, problem=spec.problem or wrong)
    return replace(spec, config=config.replace(model_path=str(files[0]), model_name=config.served_name))


def _with_task(spec: ModelSpec) -> ModelSpec:
    """Returns the model with its task set where its files show that it does not generate: that decides its class."""
    config = spec.config
    if config.task or config.fake_engine or not config.model_path:
        return spec
    found = model_dir.detect_task(config.model_dir, config.composition)
    return spec if found in ("", TEXT_GENERATION.name) else replace(spec, config=config.replace(task=found))


def check_task(config: Config) -> None:
    """Raise WrongOptions for a flag of another task than --task, as OVMS does."""
    if not config.task:
        return
    for row in listed(config.without):
        others = (name for name in config.composition.task_names if name != row.metadata["not_of"])
        tasks = row.metadata["tasks"] or tuple(others)
        if config.task not in tasks and config.value(row.name) != row.default:
            raise WrongOptions(f"--{row.name} is not an option of --task {config.task}, only of {', '.join(tasks)}")


def _desired_state(config: Config) -> DesiredState:
    if config.config_path:
        return _from_file(config)
    if config.model_repository_path and not config.model_path:
        return _from_repository(config)
    if config.fake_engine:
        return DesiredState(models=(ModelSpec(config=config),), required=True)
    if not config.model_path:
        others = (ModelSpec(config=_demo(config, row), on_demand=True) for row in config.composition.demos)
        return DesiredState(models=(ModelSpec(config=config), *others), required=True)
    base = Path(config.model_path)
    files = {path: file_stat(path) for path in (base, base / model_dir.GRAPH)}
    return DesiredState(models=(_from_model_path(config, base),), files=files, required=True)


def _demo(config: Config, row: DemoModel) -> Config:
    """Returns the options of a model that is served with the demo model: those of the server, with its own as the
    defaults."""
    own: dict[str, Any] = {
        row.name: row.default for row in listed(config.without) if row.metadata["group"] in PER_MODEL
    }
    own |= {"model_path": str(row.path), "model_name": row.name, "task": row.task}
    return config.replace(**own | {"model_idle_timeout_s": DEMO_IDLE_TIMEOUT_S})


def server_config(config: Config) -> Config:
    """Returns the server's options: of those that point to models only the one that applies, and those that a config
    file sets for the whole server. Raises StartError."""
    check_task(config)
    config = _model_source(config)
    if not config.config_path:
        return config
    from ..repository import config_file  # which few servers have

    return config.replace(**config_file.read(config_file.location(config.config_path)).options)


def _model_source(config: Config) -> Config:
    """Returns the options with config_path or model_path set, also from other options; with neither, the demo model or
    all models of the repository are meant. Raises WrongOptions."""
    if config.config_path:
        if config.model_path or config.model_name:
            raise WrongOptions("--config_path names the models: --model_path and --model_name do not go with it")
        _refuse_of_one_model(config, "with --config_path each entry has its own {}")
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
    names = [config.served_name, *(row.name for row in config.composition.demos)]
    log.warning(
        "no option points to a model: %s served, as %s; --model_path DIR serves another",
        counted(len(names), "small demo model is", "small demo models are"),
        " and ".join(names),
    )
    return config


def _in_repository(config: Config) -> Config:
    """Returns the named model, or else the repository's config.json, or else all its models. Raises WrongOptions."""
    from ..repository import config_file, listing

    repository, source = Path(config.model_repository_path), config.source_model
    if source and not config.model_repository_path:
        raise WrongOptions("--source_model needs --model_repository_path")
    if name := source or config.model_name:
        path = listing.place(repository, name)
        return config.replace(model_path=str(path), model_name=config.model_name or name, source_model="")
    file = repository / config_file.NAME
    if os.path.isfile(file) and not listing.is_model(repository):  # a model has a config.json of another kind
        _refuse_of_one_model(config, f"with {file} each entry has its own {{}}")
        return config.replace(config_path=str(file))
    _refuse_of_one_model(config, "--model_name says which of --model_repository_path")
    return config


def _refuse_of_one_model(config: Config, otherwise: str) -> None:
    for row in listed(config.without):
        if row.metadata["of_one"] and config.value(row.name):
            raise WrongOptions(f"--{row.name} is for one model: {otherwise.format(row.name)}")


def _from_model_path(config: Config, base: Path) -> ModelSpec:
    """Returns the model of the command line: its options before those of its graph, which --task disables as in
    OVMS."""
    path = base / model_dir.GRAPH
    if config.task or not os.path.isfile(path):
        return ModelSpec(config=config)
    from ..repository import graph

    given = config.of_model() | {"model_name": config.served_name}
    del given["model_path"]
    try:
        text = graph.text_of(path)
        return ModelSpec(config=graph.applied(config, text, path, base).replace(**given), stamp=_digest(text))
    except StartError as error:
        return ModelSpec(config=config, problem=error)


def _from_repository(config: Config) -> DesiredState:
    """Returns every model of the repository, each as --model_name would serve it."""
    from ..repository import listing

    repository = Path(config.model_repository_path)
    files: dict[Path, FileStat] = {}

    def visit(path: Path) -> None:
        files.setdefault(path, file_stat(path))

    if config.pulls_at_run_time:  # it may be empty, to begin with
        names = listing.servable(repository, visit)
    else:
        names = listing.models_of(repository, config.composition, visit)
    log.info("%s has %d model%s: %s", repository, len(names), "s" * (len(names) > 1), listing.abbreviate(names))
    models = []
    for name in names:
        base = repository / name
        files |= {place: file_stat(place) for place in (base, base / model_dir.GRAPH)}
        try:
            one = _from_model_path(
                config.replace(model_repository_path="", model_path=str(base), model_name=name), base
            )
            models.append(replace(one, announced=True))
        except StartError as error:  # a name that is not valid text
            log.error("%s is left out: %s", safe(str(base)), error)
    return DesiredState(models=tuple(models), files=files)


def _from_file(config: Config) -> DesiredState:
    from ..repository import config_file

    path = config_file.location(config.config_path)
    files = {path: file_stat(path)}
    models = []
    for entry in config_file.read(path).entries:
        files |= {place: file_stat(place) for place in (entry.base, entry.graph)}
        try:
            models.append(ModelSpec(config=config_file.options_of(entry, config), stamp=_stamp(entry.graph)))
        except StartError as error:
            unusable = config.replace(config_path="", model_name=entry.name, model_path=str(entry.base))
            models.append(ModelSpec(config=unusable, problem=error, stamp=_stamp(entry.graph)))
    return DesiredState(models=tuple(models), files=files)


def _stamp(path: Path) -> str:
    from ..repository import graph

    try:
        return _digest(graph.text_of(path))
    except StartError:
        return ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
