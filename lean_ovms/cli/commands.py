"""Runs a command line: the command that an option asks for, or the server once its model is present.

Results go to stdout, as OVMS prints them; progress and errors go to stderr. Heavy modules are imported on first use.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from ..config import Config
from ..engine.client import prestart
from ..errors import ExitStatus, StartError, WrongOptions
from ..manifest import SOURCES, named
from ..observability import logging as log
from ..util import resources

logger = logging.getLogger("lean_ovms")

FEWEST_FILES = 32
"""The fewest file descriptors with which a server works: 24 serve the demo model, with 20 an import fails."""


class CheckedSource(Protocol):
    """A source of models, such as a hub, whose options are checked before a command or the server runs."""

    def check(self, config: Config, command: str) -> None:
        """Checks the options that point to models, to serve them or for a command's option. Raises WrongOptions."""


class Sources(CheckedSource, Protocol):
    """Finds the models of a server, and fetches them if the options ask for it."""

    def with_repository(self, config: Config) -> Config:
        """Returns the options, with the model repository if a model in it is named. Raises StartError."""

    def available(self, config: Config) -> Config:
        """Makes the models available, and returns the options that serve them. Raises StartError."""


class Interrupted(BaseException):
    """Raised when SIGINT or SIGTERM arrives. It is not an Exception, so that no error handler catches it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = ExitStatus.SIGNALLED + number


def run(config: Config) -> int:
    """Runs the command that the options name, or else the server. Returns the exit status."""
    commands = [name for name in config.composition.commands_of_options if config.value(name)]
    set_up_log(config, plain=bool(commands))
    try:
        if len(commands) > 1:
            raise WrongOptions(f"--{commands[0]} and --{commands[1]} cannot be used together")
        sources: Sources = config.part(SOURCES)()
        sources.check(config, "".join(commands))
        config = sources.with_repository(config)
        with _interruptible():
            if commands:
                row = config.composition.commands_of_options[commands[0]]
                named(row.package, row.run)(config)
                return _flush_stdout()
            config = sources.available(config)
    except BrokenPipeError:  # the reader of stdout (head) has closed it
        if config.source_model:
            raise  # it may be the hub's connection
        return _flush_stdout()
    except Interrupted as interrupt:
        return _print_error("stopped; run the same command again to continue", interrupt.status)
    except WrongOptions as error:
        return _print_error(error, ExitStatus.USAGE)
    except StartError as error:
        if commands:
            return _print_error(error, ExitStatus.FAILED)
        return _print_error(f"cannot start: {error}", error.exit_status)
    return _serve(config)


def set_up_log(config: Config, *, plain: bool) -> None:
    """Sets up the log; plain lines have no times, for a person who waits at a terminal for a command's end."""
    text = log.PLAIN if plain and config.log_format == "text" and sys.stderr.isatty() else ""
    log.setup(config.log_level, config.log_format, text=text)


def _serve(config: Config) -> int:
    if resources.raise_open_files(FEWEST_FILES) < FEWEST_FILES:
        problem = f"cannot start: a server needs at least {FEWEST_FILES} open files; raise the limit (ulimit -n)"
        return _print_error(problem, ExitStatus.NEVER_SERVED)
    if not config.without_model:
        prestart.prestart()
    try:
        from ..server.run import run as serve

        return serve(config)
    finally:
        prestart.discard()


@contextmanager
def _interruptible() -> Iterator[None]:
    """Makes SIGINT and SIGTERM raise Interrupted inside the `with` block.

    Process 1 of a container needs this, since signals without a handler have no effect on it. The server installs
    handlers of its own.
    """

    def stop(number: int, frame: object) -> None:
        raise Interrupted(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _flush_stdout() -> int:
    """Flushes stdout, and returns the exit status; a full disk is an error, a reader that went away (head) is not."""
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


def require(condition: object, message: str) -> None:
    """Raises WrongOptions with the message unless the condition holds."""
    if not condition:
        raise WrongOptions(message)
