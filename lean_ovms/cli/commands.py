"""Running a command line: a command that an option asks for, or the server, once its model is there.

Results go to stdout, as OVMS prints them; progress and errors to stderr. Heavy modules are imported on first use.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ..config import Config
from ..engine.client import prestart
from ..errors import ExitStatus, StartError, WrongOptions
from ..manifest import MODEL_SOURCE, named
from ..observability import logging as log
from ..repository import model_dir
from ..server import checks
from ..util import resources

logger = logging.getLogger("lean_ovms")

FEWEST_FILES = 32
"""Open files of a server. With 24 the demo model is served; with 20 an import, the event loop or the engine fails."""


class ModelSource(Protocol):
    """A source of models that are not in the directory of models, or not in OpenVINO's format."""

    def check(self, config: Config, command: str) -> None:
        """Checks the options of the models that are to be fetched.

        Args:
            config: All options.
            command: The option that asks for a command; "": the models are to be served.

        Raises:
            WrongOptions: They do not fit together.
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
        self.status = ExitStatus.SIGNALLED + number


def run(config: Config) -> int:
    """Runs the command that the options name, or serves. Returns the exit status."""
    commands = [name for name in config.composition.commands_of_options if config.value(name)]
    set_up_log(config, plain=bool(commands))
    try:
        _check(config, commands)
        config = with_repository(config)
        with _interruptible():
            if commands:
                row = config.composition.commands_of_options[commands[0]]
                named(row.package, row.run)(config)
                return _flush_stdout()
            config = available(config)
    except BrokenPipeError:  # the reader of stdout (head) has closed it
        if config.source_model:
            raise  # it may be the hub's connection
        return _flush_stdout()
    except Interrupted as interrupt:
        return _print_error("stopped; the same command goes on from here", interrupt.status)
    except WrongOptions as error:
        return _print_error(error, ExitStatus.USAGE)
    except StartError as error:
        if commands:
            return _print_error(error, ExitStatus.FAILED)
        return _print_error(f"cannot start: {error}", error.exit_status)
    return _serve(config)


def set_up_log(config: Config, *, plain: bool) -> None:
    """Sets up the log.

    Args:
        config: All options.
        plain: Whether a person waits for the end of a command at a terminal, who reads lines without times.
    """
    text = log.PLAIN if plain and config.log_format == "text" and sys.stderr.isatty() else ""
    log.setup(config.log_level, config.log_format, text=text)


def available(config: Config) -> Config:
    """Returns the options that serve the model: one of a hub is pulled, and one in a directory is prepared, as far as
    that has not been done. Raises StartError."""
    if config.source_model:
        config = with_repository(config)
        checks.checked(config)
        return fetched(config)
    return _prepared(config) if config.model_path and not config.without_model else config


def fetched(config: Config) -> Config:
    """Returns the options that serve source_model, which is fetched if there is a source of models. Raises
    StartError."""
    make = config.part(MODEL_SOURCE)
    return config if make is None else make().fetch(config)


def _serve(config: Config) -> int:
    if resources.raise_open_files(FEWEST_FILES) < FEWEST_FILES:
        problem = f"cannot start: a server needs {FEWEST_FILES} open files, more than the limit (ulimit -n) allows"
        return _print_error(problem, ExitStatus.NEVER_SERVED)
    if not config.without_model:
        prestart.prestart()
    try:
        from ..server.run import run as serve

        return serve(config)
    finally:
        prestart.discard()


def with_repository(config: Config) -> Config:
    """Returns the options with the directory of models, where a model is meant by its name. Raises StartError."""
    by_name = config.source_model or config.any_set(config.composition.fetching_commands)
    return config.replace(model_repository_path=str(repository_of(config))) if by_name else config


def repository_of(config: Config) -> Path:
    """Returns the directory of models: the user's cache, unless another one is given. Raises StartError."""
    if config.model_repository_path:
        return Path(config.model_repository_path)
    repository = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lean_ovms" / "models"
    try:
        repository.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"{repository}: {error.strerror}; give another --model_repository_path") from None
    return repository


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
    """Makes SIGINT and SIGTERM raise Interrupted in the block. Process 1 of a container needs that: signals without a
    handler have no effect on it. The server has handlers of its own."""

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
            return _print_error(f"stdout: {error.strerror}", ExitStatus.FAILED)
    return ExitStatus.OK


def _print_error(message: object, status: int) -> int:
    print(f"lean_ovms: {message}", file=sys.stderr)
    return status


def _check(config: Config, commands: list[str]) -> None:
    """Raises WrongOptions for options that do not go together, as OVMS does."""
    if len(commands) > 1:
        raise WrongOptions(f"--{commands[0]} and --{commands[1]} exclude each other")
    command = commands[0] if commands else ""
    settings, fetches = config.composition.settings, command in config.composition.fetching_commands
    if config.source_model and config.model_path:
        raise WrongOptions("--source_model and --model_path exclude each other")
    if config.source_model and config.model_list and settings and not fetches:
        raise WrongOptions(f"--source_model and --{settings.option} exclude each other")
    if config.source_model and command and not fetches:
        raise WrongOptions(f"--source_model and --{command} exclude each other")
    if (make := config.part(MODEL_SOURCE)) is not None:
        make().check(config, command)
    fetched = config.source_model or fetches
    takes_file = fetched or (command and config.composition.commands_of_options[command].takes_file)
    for form in config.composition.formats:
        require(not config.value(form.option) or takes_file, f"--{form.option} needs --source_model")
    for row in config.composition.companions:
        require(not config.value(row.source) or fetched, f"--{row.source} needs --source_model")


def require(condition: object, message: str) -> None:
    """Raises WrongOptions with the message unless the condition holds."""
    if not condition:
        raise WrongOptions(message)
