"""Running a command line: a command (list, edit, or one of a feature), or the server, once its model is there.

Results go to stdout, as OVMS prints them; progress and errors to stderr. Heavy modules are imported on first use.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from .._version import __version__
from ..composition import TEXT_GENERATION
from ..config import Config, listed
from ..engine.client import prestart
from ..errors import StartError, WrongOptions
from ..manifest import MODEL_SOURCE, named
from ..observability import logging as log
from ..repository import model_dir, model_file
from ..server import checks, exit_status
from ..util import resources
from ..util.files import read_text

logger = logging.getLogger("lean_ovms")

FEWEST_FILES = 32
"""Open files of a server. With 24 the demo model is served; with 20 an import, the event loop or the engine fails."""


class ModelSource(Protocol):
    """Where models come from that are not in the directory of models, or not in OpenVINO's format."""

    def check(self, config: Config, command: str) -> None:
        """Checks the options of what it fetches. Raises WrongOptions.

        command: the option that asks for a command; empty: the models are served.
        """

    def fetch(self, config: Config) -> Config:
        """Puts source_model into the directory of models, unless it is there. Returns the options that serve it.

        Raises StartError.
        """

    def prepare(self, config: Config) -> Config:
        """Makes of the files at model_path a model that can be served, where they are none. Returns the options that
        serve it. Raises StartError, or OSError, after which loading says what is wrong."""


class Interrupted(BaseException):
    """Says that SIGINT or SIGTERM arrived. It is not an Exception, so that no handler of errors catches it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = exit_status.SIGNALLED + number


def run(config: Config) -> int:
    """Runs the command that the options name, or serves. Returns the exit status."""
    commands = [name for name in (*config.composition.commands_of_options, *COMMANDS) if config.value(name)]
    set_up_log(config, plain=bool(commands))
    try:
        _check(config, commands)
        config = with_repository(config)
        with _interruptible():
            if commands:
                _runner(config, commands[0])(config)
                return _flush_stdout()
            config = available(config)
    except BrokenPipeError:  # the reader of stdout (head) has closed it
        if config.source_model:
            raise  # it may be the hub's connection
        return _flush_stdout()
    except Interrupted as interrupt:
        return _print_error("stopped; the same command goes on from here", interrupt.status)
    except WrongOptions as error:
        return _print_error(error, exit_status.USAGE)
    except StartError as error:
        if commands:
            return _print_error(error, exit_status.FAILED)
        return _print_error(f"cannot start: {error}", exit_status.of(error))
    return _serve(config)


def _runner(config: Config, command: str) -> Callable[[Config], None]:
    """Returns the function of a command, that of a feature with its module imported."""
    found = config.composition.commands_of_options.get(command)
    return COMMANDS[command] if found is None else named(found.package, found.run)


def set_up_log(config: Config, *, plain: bool) -> None:
    """Sets up the log. plain: a person who waits for the end of a command reads it on a terminal, without times."""
    text = log.PLAIN if plain and config.log_format == "text" and sys.stderr.isatty() else ""
    log.setup(config.log_level, config.log_format, text=text)


def available(config: Config) -> Config:
    """Returns the options that serve the model: one of a hub is pulled, and one in a directory is prepared, as far as
    that has not been done. Raises StartError."""
    if config.source_model:
        config = with_repository(config)
        checks.checked(config)
        return fetched(config)
    return _prepared(config) if config.model_path and not config.fake_engine else config


def fetched(config: Config) -> Config:
    """Returns the options that serve source_model, which is fetched if there is a source of models. Raises
    StartError."""
    make = config.part(MODEL_SOURCE)
    return config if make is None else make().fetch(config)


def _serve(config: Config) -> int:
    if resources.raise_open_files(FEWEST_FILES) < FEWEST_FILES:
        problem = f"cannot start: a server needs {FEWEST_FILES} open files, more than the limit (ulimit -n) allows"
        return _print_error(problem, exit_status.NEVER_SERVED)
    if not config.fake_engine:
        prestart.prestart()
    try:
        from ..server.run import run as serve

        return serve(config)
    finally:
        prestart.discard()


def with_repository(config: Config) -> Config:
    """Returns the options with the user's cache as the directory of models, unless another one is given, where a model
    is meant by its name."""
    by_name = config.source_model or config.list_models or config.any_set(config.composition.commands_of_options)
    if config.model_repository_path or not by_name:
        return config
    repository = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lean_ovms" / "models"
    try:
        repository.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"{repository}: {error.strerror}; give another --model_repository_path") from None
    return config.replace(model_repository_path=str(repository))


def _prepared(config: Config) -> Config:
    """Returns the options for a directory that can be served, with what is missing made of what is there. Raises
    StartError."""
    path = config.model_dir
    try:
        missing = path.is_dir() and bool(model_dir.missing_in(path, config.task))
        make = config.composition.part(MODEL_SOURCE) if missing else config.part(MODEL_SOURCE)
        return config if make is None else make().prepare(config)
    except OSError:
        return config  # loading says what is wrong


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM raise Interrupted in the block. Process 1 of a container needs that: signals without a handler
    have no effect on it. The server has handlers of its own."""

    def stop(number: int, frame: object) -> None:
        raise Interrupted(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _flush_stdout() -> int:
    """Flushes stdout. Returns the exit status: a reader that has closed it (head) is no error, a full disk is."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python tries again at exit and reports that
        if not isinstance(error, BrokenPipeError):
            return _print_error(f"stdout: {error.strerror}", exit_status.FAILED)
    return exit_status.OK


def _print_error(message: object, status: int) -> int:
    print(f"lean_ovms: {message}", file=sys.stderr)
    return status


def _check(config: Config, commands: list[str]) -> None:
    """Raise WrongOptions for options that do not go together, as OVMS does."""
    if len(commands) > 1:
        raise WrongOptions(f"--{commands[0]} and --{commands[1]} exclude each other")
    command = commands[0] if commands else ""
    fetches = command not in ("", *COMMANDS)
    if config.source_model and (config.model_path or (config.config_path and not fetches)):
        other = "model_path" if config.model_path else "config_path"
        raise WrongOptions(f"--source_model and --{other} exclude each other")
    if config.source_model and command in COMMANDS:
        raise WrongOptions(f"--source_model and --{command} exclude each other")
    if command == "configure":
        require(config.model_path, "--configure needs --model_path")
        require(not config.model_name, "--configure and --model_name exclude each other: a graph holds no name")
    elif command in COMMANDS and command != "list_models":
        require(config.model_name, f"--{command} needs --model_name")
        require(_config_file(config) is not None, f"--{command} needs --config_path")
    if (make := config.part(MODEL_SOURCE)) is not None:
        make().check(config, command)
    fetched = config.source_model or fetches
    for form in config.composition.formats:
        needless = not config.value(form.option) or command == "configure"
        require(needless or fetched, f"--{form.option} needs --source_model")
    for row in config.composition.companions:
        require(not config.value(row.source) or fetched, f"--{row.source} needs --source_model")


def require(condition: object, message: str) -> None:
    """Raises WrongOptions with the message unless the condition holds."""
    if not condition:
        raise WrongOptions(message)


def write_graph(config: Config, directory: Path, companions: Mapping[str, str], name: str) -> Config:
    """Writes the graph of these options into the directory of a model.

    Args:
        config: The options.
        directory: The model's.
        companions: The paths of further models by their fields in the graph.
        name: The model's name in the API.

    Returns:
        The options that serve it by that graph.

    Raises:
        StartError: It cannot be written.
    """
    from ..repository import graph_writer
    from ..util import atomic_file

    file = config.model_file
    found = config.task or model_dir.detect_task(directory / file, config.composition)
    config = config.replace(task="" if found == TEXT_GENERATION.name else found)
    if graph_writer.graph_of(config) is None:
        logger.info("%s gets no %s: OVMS has no graph for the task %s", directory, model_dir.GRAPH, config.task)
        return served(config, {"model_path": str(directory), "model_name": name})
    there = {row.graph: path for row in config.composition.companions if (path := config.value(row.path))}
    paths = {**companions, **{field: str(Path(path).absolute()) for field, path in there.items()}}
    text = graph_writer.text(config, f"./{file}", paths, __version__)
    path = directory / model_dir.GRAPH
    try:
        if path.exists() and read_text(path) != text:
            shutil.copyfile(path, path.with_suffix(".pbtxt.bak"))
            logger.info("%s is replaced by one from the options given; the old one is %s.bak", path, path.name)
        atomic_file.write(path, text)
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"{path} cannot be written: {error}") from None
    place = {"model_path": str(directory), "model_name": name, "task": ""}
    return served(config, {**graph_writer.written_options(config), **place})


def served(config: Config, changes: dict[str, Any]) -> Config:
    """Returns the options with these changes, and without those that say where a model comes from."""
    rest = {row.name: row.default for row in listed(config.without) if row.metadata["group"] == "repository"}
    return config.replace(**{**rest, **changes})


# --- commands


def _list(config: Config) -> None:
    from ..repository.listing import servable

    found = servable(Path(config.model_repository_path))
    for path in found:
        print(path)
    if not found:
        print(f"lean_ovms: there is no model in {config.model_repository_path}", file=sys.stderr)


def _configure(config: Config) -> None:
    path = Path(config.model_path)
    if path.is_file() and model_file.is_one(path):
        config = config.with_model_file(path.name)
        path = path.parent
    elif config.model_file:
        if not (path / config.model_file).is_file():
            raise StartError(f"there is no {path / config.model_file}")
    else:
        model_dir.check(path, config.task)
    write_graph(config, path, {}, "")
    print(f"Graph: {model_dir.GRAPH} created in: {path}")


def _add(config: Config) -> None:
    from ..repository import config_editor

    file, path = _config_file(config), config.model_path
    assert file is not None
    if not path:
        require(config.model_repository_path, "--add_to_config needs --model_path or --model_repository_path")
        path = config_editor.relative_path(file.parent, Path(config.model_repository_path) / config.model_name)
    if not (file.parent / path).exists():
        print(f"lean_ovms: there is nothing at {file.parent / path} yet", file=sys.stderr)
    changed = config_editor.add(file, config.model_name, path, config_editor.options_of(config))
    print(f"Config updated: {file}" if changed else f"{config.model_name} is in {file} already")


def _remove(config: Config) -> None:
    from ..repository import config_editor

    require(not config.model_path, "--model_path and --remove_from_config exclude each other")
    file = _config_file(config)
    assert file is not None
    if config_editor.remove(file, config.model_name):
        print(f"Config updated: {file}")
    else:
        names = ", ".join(config_editor.names(file)) or "no models"
        print(f"{config.model_name} is not in {file}, which has {names}")


COMMANDS: dict[str, Callable[[Config], None]] = {
    "list_models": _list,
    "configure": _configure,
    "add_to_config": _add,
    "remove_from_config": _remove,
}
"""Options of the core that are commands."""


def _config_file(config: Config) -> Path | None:
    """Returns the file to edit: that of the command, of --config_path, or of the repository."""
    from ..repository import config_file

    given = config.add_to_config or config.remove_from_config
    named = config.config_path if given.lower() in ("true", "1") else given
    if not named:
        return Path(config.model_repository_path) / config_file.NAME if config.model_repository_path else None
    return config_file.location(named)
