"""The table of commands, and what runs a command line: the command that an option asks for, or the server.

Each of the core's commands has a module in this folder. A command without a function only stands for options:
arguments.py reads it, and `run` runs it. Results go to stdout, as OVMS prints them; progress and errors go to stderr.
Heavy modules are imported on first use.
"""

from __future__ import annotations

import argparse
import difflib
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn, Protocol

from ..composition import compose
from ..config import Config, shown
from ..engine.client import prestart
from ..errors import ExitStatus, StartError, WrongOptions
from ..manifest import SOURCES, Command, named

logger = logging.getLogger("lean_ovms")

FEWEST_FILES = 32
"""The fewest file descriptors with which a server works: 24 serve the demo model, with 20 an import fails."""
ABOUT_MODELS = (Command("serve", "[MODEL]", "serve a model (the default command)"),)
ABOUT_SERVERS = (
    Command("version", "", "show the versions of this program and its libraries", "version:main"),
    Command("features", "", "list the server's features and which ones --without leaves out", "features:main"),
    Command("help", "[COMMAND | TOPIC]", "explain a command or a group of options", "help:main"),
)

SIMILAR = 0.6
"""The least similarity of a word that is suggested, by difflib."""


@cache
def commands(without: str = "") -> dict[str, Command]:
    """Returns the commands of the core and of the features by name, except those of the features in `without`."""
    return {row.word: row for row in (*ABOUT_MODELS, *compose(without).commands, *ABOUT_SERVERS) if row.word}


class CommandParser(argparse.ArgumentParser):
    """An argument parser that raises StartError for an unknown flag, and suggests the most similar one.

    The flags of other servers, which --help does not list, are among those that it suggests.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses arguments. "-h" is handled as text, since as a flag it would match "-hf", a flag of llama.cpp."""
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args(["--help" if word == "-h" else word for word in words], namespace)

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: --(\w+)", message)
        flags = [name for action in self._actions for name in action.option_strings]
        names = [name[2:] for name in flags if name.startswith("--")]
        raise StartError(f"{message} ({hint(unknown[1] if unknown else '', names, '--help lists the options', '--')})")


def hint(word: str, known: Iterable[str], otherwise: str, prefix: str = "") -> str:
    """Returns a question that suggests the first of the most similar known words, or another text if none is similar.

    Args:
        word: The unknown word.
        known: The known words.
        otherwise: The text if none is similar.
        prefix: A prefix of all known words, such as "--".
    """
    similarity = {name: difflib.SequenceMatcher(None, name, word).ratio() for name in known}
    near = max(similarity, key=similarity.__getitem__, default="")
    return f"did you mean {prefix}{near}?" if similarity.get(near, 0) >= SIMILAR else otherwise


def parser(name: str, notes: str = "") -> CommandParser:
    """Returns the parser of a command's own arguments, whose help ends with these notes."""
    row = commands()[name]
    result = CommandParser(
        prog=f"lean_ovms {name}",
        usage=f"%(prog)s {row.usage} [--option VALUE ...]".replace("  ", " "),
        description=f"{row.help[0].upper()}{row.help[1:]}.",
        epilog=notes,
        allow_abbrev=False,
        add_help=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--help", action="help", help="show this text, as -h does")
    return result


def explain(row: Command) -> NoReturn:
    """Prints the help of a command that stands for options of the server, and exits."""
    group = next((option.metadata["group"] for option in shown() if option.name == row.option), "")
    more = f", and lean_ovms --help={group} those for this command" if group else ""
    notes = f"It accepts the options of the server: lean_ovms --help shows the most used ones{more}."
    parser(row.word, notes).parse_args(["--help"])
    raise AssertionError("--help exits")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of cells as lines of text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def add_json(result: CommandParser) -> CommandParser:
    """Adds --json, which selects output for programs, to a parser, and returns it."""
    result.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return result


def value_of(text: str) -> Any:
    """Parses a text as JSON; returns the text itself if it is not valid JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def print_json(value: object) -> None:
    """Prints the result of a command as JSON."""
    print(json.dumps(value, indent=2))


def described(without: str = "") -> str:
    """Returns a list of the commands with their help, for people."""
    return table([(f"  {name} {row.usage}", row.help) for name, row in commands(without).items()])


# --- running a command line


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
        if not commands:
            return _print_error(f"cannot start: {error}", error.exit_status)
        fetches = config.composition.commands_of_options[commands[0]].fetches
        return _print_error(error, error.exit_status if fetches else ExitStatus.FAILED)
    return _serve(config)


def set_up_log(config: Config, *, plain: bool) -> None:
    """Sets up the log; plain lines have no times, for a person who waits at a terminal for a command's end."""
    from ..observability import logging as log  # late: --help and most commands do not need it

    text = log.PLAIN if plain and config.log_format == "text" and sys.stderr.isatty() else ""
    log.setup(config.log_level, config.log_format, text=text)


def _serve(config: Config) -> int:
    from ..util import resources

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
