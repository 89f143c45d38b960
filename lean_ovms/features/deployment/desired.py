"""Reads from the options which models a server should serve: one, those that a file lists, or those of a repository.

If no option points to a model, the embedded demo model is served, and under its own name only: after a misspelt option,
its answers must not be mistaken for those of another model.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ...cli.commands import CheckedSource, Sources
from ...composition import TEXT_GENERATION, compose
from ...config import PER_MODEL, Config, listed
from ...errors import StartError, WrongOptions, counted
from ...manifest import MODEL_SOURCE, RUNTIME_PULLS, DemoModel, SettingsRow, named
from ...observability.logging import abbreviate, safe
from ...repository import model_dir, model_file
from ...repository.model_dir import single_files
from ...server import checks
from ...util.files import FileStat, file_stat
from .feature import DeploymentOptions

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
    """The error because of which the model cannot be served; None if it can."""
    stamp: str = ""
    """A text that changes if the model has to be loaded again although its options are the same."""
    announced: bool = False
    """Whether the model is also listed while it is being loaded."""
    on_demand: bool = False
    """Whether the model is loaded by its first request."""
    permanent: bool = True
    """Whether the model is never unloaded."""

    @property
    def group(self) -> str:
        """The name of the group of models that are in memory together; "" if the model has no group."""
        return self.config.of(DeploymentOptions).group_name

    @property
    def idle_timeout_s(self) -> float:
        """The idle time in seconds after which the model is unloaded; 0 if it is never unloaded for being idle."""
        return self.config.of(DeploymentOptions).model_idle_timeout_s

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
    """The files that were read, with their states before that."""
    required: bool = False
    """Whether a model that does not load stops the start."""
    max_loaded: int = 0
    """The most groups of models in memory at once; 0 for as many as the memory holds."""


class ModelSource(CheckedSource, Protocol):
    """A source of models that are not in the directory of models, or not in OpenVINO's format."""

    def fetch(self, config: Config) -> Config:
        """Fetches source_model into the models' directory if needed. Returns options to serve it. Raises StartError."""

    def directory(self, config: Config) -> str:
        """Returns the path of source_model in the models' directory, once it is fetched. Raises StartError."""

    def prepare(self, config: Config) -> Config:
        """Converts the files at model_path, if necessary, and returns the options that serve the model.

        Raises StartError, or OSError, after which loading the model reports what is wrong.
        """


def _source_of(config: Config) -> ModelSource | None:
    """Returns the source of models that a feature supplies, or None."""
    make: Callable[[], ModelSource] | None = config.part(MODEL_SOURCE)
    return None if make is None else make()


def directory_of(config: Config) -> Path:
    """Returns the directory in which source_model is, if it is fetched. Raises StartError."""
    source = _source_of(config)
    return repository_of(config) / (config.source_model if source is None else source.directory(config))


class SettingsFiles(Protocol):
    """Reads and writes files with options of models. Each method raises StartError."""

    def server(self, config: Config) -> Config:
        """Returns the server's options with those that the file `Config.model_list` sets for the whole server."""

    def models(self, config: Config) -> DesiredState:
        """Returns the models that the file `Config.model_list` lists, each with its problem if it cannot be served."""

    def model(self, config: Config, base: Path) -> ModelSpec:
        """Returns a model with the options in its directory `base`, which those of the command line override."""

    def write(self, config: Config, directory: Path, companions: Mapping[str, str], name: str) -> Config:
        """Writes options of a model into its directory.

        Args:
            config: The options.
            directory: The model's.
            companions: The paths of further models in it, by their `Companion.path`.
            name: The model's name in the API.

        Returns:
            The options that serve it by that file.

        Raises:
            StartError: It cannot be written.
        """


def settings_files(row: SettingsRow) -> SettingsFiles:
    """Returns the object of a feature that reads and writes its files of options."""
    files: SettingsFiles = named(row.package, row.files)()
    return files


def write_settings(config: Config, directory: Path, companions: Mapping[str, str], name: str) -> Config:
    """Writes the options of a model into its directory, if there is a form for them. Returns those that serve it.

    The parameters are those of `SettingsFiles.write`. Raises StartError.
    """
    if (settings := config.composition.settings) is not None:
        return settings_files(settings).write(config, directory, companions, name)
    rows = config.composition.companions
    there = {row.path: str(directory / companions[row.path]) for row in rows if row.path in companions}
    return served(config, {"model_path": str(directory), "model_name": name, **there})


def served(config: Config, changes: dict[str, Any]) -> Config:
    """Returns the options with changes, and without the options about the source of the model."""
    rest = {row.name: row.default for row in listed(config.without) if row.metadata["group"] == "repository"}
    return config.replace(**{**rest, **changes})


class ServedModels(Sources):
    """Finds the models to which options point: by a directory, or by a name in a directory of models or at a hub."""

    def check(self, config: Config, command: str) -> None:
        """Checks the options that point to models by OVMS's rules. Raises WrongOptions."""
        settings, fetches = config.composition.settings, command in config.composition.fetching_commands
        if config.source_model and config.model_path:
            raise WrongOptions("--source_model and --model_path cannot be used together")
        if config.source_model and config.model_list and settings and not fetches:
            raise WrongOptions(f"--source_model and --{settings.option} cannot be used together")
        if config.source_model and command and not fetches:
            raise WrongOptions(f"--source_model and --{command} cannot be used together")
        if (source := _source_of(config)) is not None:
            source.check(config, command)
        fetched = config.source_model or fetches
        takes_file = fetched or (command and config.composition.commands_of_options[command].takes_file)
        for form in config.composition.formats:
            require(not config.value(form.option) or takes_file, f"--{form.option} needs --source_model")
        for row in config.composition.companions:
            require(not config.value(row.source) or fetched, f"--{row.source} needs --source_model")

    def with_repository(self, config: Config) -> Config:
        """Returns the options with the directory of models set, if they name a model in it. Raises StartError."""
        by_name = config.source_model or config.any_set(config.composition.fetching_commands)
        return config.replace(model_repository_path=str(repository_of(config))) if by_name else config

    def available(self, config: Config) -> Config:
        """Returns the options that serve the model, which is pulled or converted if needed. Raises StartError."""
        if config.source_model:
            config = self.with_repository(config)
            checks.checked(config)
            return fetched(config)
        return _prepared(config) if config.model_path and not config.without_model else config


def require(condition: object, message: str) -> None:
    """Raises WrongOptions with the message unless the condition holds."""
    if not condition:
        raise WrongOptions(message)


def fetched(config: Config) -> Config:
    """Fetches source_model, if a feature can do that, and returns the options that serve it. Raises StartError."""
    source = _source_of(config)
    return config if source is None else source.fetch(config)


def repository_of(config: Config) -> Path:
    """Returns the directory of models: that of the options, or one in the user's cache. Raises StartError."""
    if config.model_repository_path:
        return Path(config.model_repository_path)
    repository = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lean_ovms" / "models"
    try:
        repository.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"{repository}: {error.strerror}; give another --model_repository_path") from None
    return repository


def _prepared(config: Config) -> Config:
    """Converts the files of a model's directory if necessary. Returns the options that serve it. Raises StartError."""
    path = config.model_dir
    try:
        missing = path.is_dir() and bool(model_dir.missing_in(path, config.task))
        make = config.composition.part(MODEL_SOURCE) if missing else config.part(MODEL_SOURCE)
        return config if make is None else make().prepare(config)
    except OSError:
        return config  # the error is reported when the model is loaded


def desired_state(config: Config) -> DesiredState:
    """Returns the models that the options configure. Raises StartError if a file with options cannot be parsed."""
    state = _desired_state(config)
    return _with_loading(
        config, replace(state, models=_without_clashes([_with_task(_with_file(spec)) for spec in state.models]))
    )


def _without_clashes(specs: list[ModelSpec]) -> tuple[ModelSpec, ...]:
    """Returns the models, with a problem set for each whose alias is also a name of another model."""
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
    """Sets for each model when it is loaded and unloaded, as --load_models says."""
    options = config.of(DeploymentOptions)
    grouped = any(spec.group not in ("", PERMANENT) for spec in state.models)
    several = (len(state.models) > 1 or pulls_at_run_time(config)) and not state.required
    limited = grouped or options.max_loaded_models > 0 or any(spec.idle_timeout_s for spec in state.models)
    repository = bool(config.model_repository_path) and not config.model_list
    on_demand = options.load_models == "request" or (
        options.load_models == "auto" and several and (repository or limited)
    )
    models = tuple(_loaded_as(spec, on_demand or spec.on_demand) for spec in state.models)
    return replace(state, models=models, max_loaded=options.max_loaded_models or int(grouped))


def _loaded_as(spec: ModelSpec, on_demand: bool) -> ModelSpec:
    fixed, unloads = spec.group == PERMANENT, on_demand or spec.idle_timeout_s > 0
    announced = spec.announced or on_demand
    return replace(spec, on_demand=on_demand and not fixed, announced=announced, permanent=fixed or not unloads)


def _with_file(spec: ModelSpec) -> ModelSpec:
    """Makes the path of a model its file, if its folder has only a model file. Several such files are a problem."""
    config = spec.config
    files = single_files(config.model_dir) if config.model_path and not config.without_model else []
    if not files:
        return spec
    if len(files) > 1:
        names = abbreviate([str(file.relative_to(config.model_dir)) for file in files])
        kind = " or ".join(row.name for row in compose().formats)
        wrong = WrongOptions(
            f"--model_path {config.model_path} contains several {kind} files; name one of them: {names}"
        )
        return replace(spec, problem=spec.problem or wrong)
    return replace(spec, config=config.replace(model_path=str(files[0]), model_name=config.served_name))


def _with_task(spec: ModelSpec) -> ModelSpec:
    """Sets the task of a model, which decides its class, if its files show that it does not generate text."""
    config = spec.config
    if config.task or config.without_model or not config.model_path:
        return spec
    with model_file.reading_once(config):
        found = model_dir.detect_task(config.model_dir, config.composition)
    return spec if found in ("", TEXT_GENERATION.name) else replace(spec, config=config.replace(task=found))


Reload = Callable[[], Awaitable[object]]
Report = Callable[[str, str, int, int], None]
"""Takes the path of a file, its SHA-256 ("" for small files), its size, and how much of it is there."""


class RepositoryPulls(Protocol):
    """Pulls and deletes models in the directory of models for clients, if that is allowed."""

    async def pull(self, name: str, report: Report, serve: Reload) -> None:
        """Fetches a model. Raises RequestError.

        Args:
            name: The name of the model.
            report: Is called on the event loop with the progress of each file.
            serve: Serves the model when all files are there.
        """

    async def delete(self, name: str, unserve: Reload) -> None:
        """Deletes a model: moves its folder away, awaits `unserve`, and deletes the files. Raises RequestError."""


def pulls_at_run_time(config: Config) -> bool:
    """Returns whether clients may pull and delete models, which is so if all models of a repository are served."""
    pointed = config.model_list or config.model_path
    return config.wants(RUNTIME_PULLS) and bool(config.model_repository_path) and not pointed


def check_task(config: Config) -> None:
    """Raises WrongOptions for a flag of another task than --task, as OVMS does."""
    if not config.task:
        return
    for row in listed(config.without):
        others = (name for name in config.composition.task_names if name != row.metadata["not_of"])
        tasks = row.metadata["tasks"] or tuple(others)
        if config.task not in tasks and config.value(row.name) != row.default:
            raise WrongOptions(f"--{row.name} cannot be used with --task {config.task}, only with {', '.join(tasks)}")


def _desired_state(config: Config) -> DesiredState:
    if config.model_list and (settings := config.composition.settings):
        return settings_files(settings).models(config)
    if config.model_repository_path and not config.model_path:
        return _from_repository(config)
    if config.without_model:
        return DesiredState(models=(ModelSpec(config=config),), required=True)
    if not config.model_path:
        others = (ModelSpec(config=_demo(config, row), on_demand=True) for row in config.composition.demos)
        return DesiredState(models=(ModelSpec(config=config), *others), required=True)
    base = Path(config.model_path)
    return DesiredState(models=(_from_model_path(config, base),), files=_watched(config, base), required=True)


def _demo(config: Config, row: DemoModel) -> Config:
    """Returns the options of the demo model, or of another one that is served with it.

    They are the options of the server, but options of single models have their defaults.
    """
    own: dict[str, Any] = {
        row.name: row.default for row in listed(config.without) if row.metadata["group"] in PER_MODEL
    }
    own |= {"model_path": str(row.inside(row.folder)), "model_name": row.name, "task": row.task}
    return config.replace(**own | {"model_idle_timeout_s": DEMO_IDLE_TIMEOUT_S})


def server_config(config: Config) -> Config:
    """Completes the server's options with those that point to the models or are set by a file. Raises StartError."""
    check_task(config)
    config, settings = _model_source(config), config.composition.settings
    return settings_files(settings).server(config) if settings is not None and config.model_list else config


def _model_source(config: Config) -> Config:
    """Sets model_path or the list of models, by whichever option points to models. Raises WrongOptions.

    If neither is set in the result, the demo model or all models of the repository are served.
    """
    if config.model_list and (settings := config.composition.settings):
        if config.model_path or config.model_name:
            raise WrongOptions(
                f"--{settings.option} names the models, so --model_path and --model_name cannot be used with it"
            )
        _refuse_of_one_model(config, f"with --{settings.option}, each entry has its own {{}}")
        return config
    if config.model_path:
        return config
    if config.source_model or config.model_repository_path:
        return _in_repository(config)
    if config.without_model:
        return config
    if config.model_name:
        raise WrongOptions(
            f"--model_name {safe(config.model_name)} does not name a model here: give its directory with --model_path "
            "DIR, "
            "or the directory of models that contains it with --model_repository_path DIR"
        )
    names = [config.served_name, *(row.name for row in config.composition.demos)]
    log.warning(
        "no option names a model, so %s served, as %s; --model_path DIR serves another model",
        counted(len(names), "small demo model is", "small demo models are"),
        " and ".join(names),
    )
    return config


def _in_repository(config: Config) -> Config:
    """Returns options for the repository's named model, else its list of models, else all. Raises WrongOptions."""
    from . import listing

    repository, source = Path(config.model_repository_path), config.source_model
    if source and not config.model_repository_path:
        raise WrongOptions("--source_model needs --model_repository_path")
    if name := source or config.model_name:
        path = listing.place(repository, name)
        return config.replace(model_path=str(path), model_name=config.model_name or name, source_model="")
    settings = config.composition.settings
    file = repository / settings.listed_in if settings else None
    # A model's own folder may contain a file of this name too.
    if settings and file and os.path.isfile(file) and not listing.is_model(repository):
        _refuse_of_one_model(config, f"with {file}, each entry has its own {{}}")
        return config.replace(**{settings.option: str(file)})
    _refuse_of_one_model(config, "choose one of --model_repository_path by --model_name")
    return config


def _refuse_of_one_model(config: Config, otherwise: str) -> None:
    for row in listed(config.without):
        if row.metadata["of_one"] and config.value(row.name):
            raise WrongOptions(f"--{row.name} can only be used with a single model: {otherwise.format(row.name)}")


def _from_model_path(config: Config, base: Path) -> ModelSpec:
    """Returns the model of the command line. Its options override the directory's, which --task switches off."""
    settings = config.composition.settings
    if config.task or settings is None or not os.path.isfile(base / settings.file):
        return ModelSpec(config=config)
    return settings_files(settings).model(config, base)


def _watched(config: Config, base: Path) -> dict[Path, FileStat]:
    """Returns a model's directory and the file with its options, with their current states."""
    settings = config.composition.settings
    return {path: file_stat(path) for path in ((base, base / settings.file) if settings else (base,))}


def _from_repository(config: Config) -> DesiredState:
    """Returns all models of the repository, each with the options with which --model_name would serve it."""
    from . import listing

    repository = Path(config.model_repository_path)
    files: dict[Path, FileStat] = {}

    def visit(path: Path) -> None:
        files.setdefault(path, file_stat(path))

    if pulls_at_run_time(config):  # the repository may be empty at the start
        names = listing.servable(repository, visit)
    else:
        names = listing.models_of(repository, config.composition, visit)
    log.info("%s has %s: %s", repository, counted(len(names), "model"), abbreviate(names))
    models = []
    for name in names:
        base = repository / name
        files |= _watched(config, base)
        try:
            one = _from_model_path(
                config.replace(model_repository_path="", model_path=str(base), model_name=name), base
            )
            models.append(replace(one, announced=True))
        except StartError as error:  # the name is not valid text
            log.error("%s is not served: %s", safe(str(base)), error)
    return DesiredState(models=tuple(models), files=files)
