"""The commands of the command line: one row here, and one module of this folder with `main(argv, environ) -> int`.

A command without a module, as those of features are, is made of options: arguments.py reads it, commands.py runs it. A
module is imported when its command is run.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

from ..composition import compose
from ..errors import StartError


class Command(NamedTuple):
    """usage: its arguments. help: part of a sentence. module: of this folder; "" if options say what to do."""

    usage: str
    help: str
    module: str = ""


COMMANDS = {
    "serve": Command("[MODEL]", "serve a model; without a command, too"),
    "run": Command("MODEL [PROMPT]", "start a model and chat with it in the terminal, or answer one prompt", "run"),
    "chat": Command("[URL] [MODEL] [PROMPT]", "the same with a server that runs already", "chat"),
    **{row.word: Command(row.usage, row.help) for row in compose().commands},
    "list": Command("", "show the models that were pulled", "list"),
    "show": Command("MODEL", "say how a model would be served, and whether it can be", "show"),
    "rm": Command("NAME ...", "delete models that were pulled", "rm"),
    "ps": Command("[URL]", "show the models of a running server", "ps"),
    "stop": Command("NAME [URL]", "unload a model of a running server", "stop"),
    "run-batch": Command("-i FILE -o FILE [MODEL]", "answer the requests of a file", "run_batch"),
    "bench": Command("[URL] [MODEL]", "measure a running server with a small load", "bench"),
    "healthcheck": Command("", "exit with status 0 if the server with these options is ready", "healthcheck"),
    "version": Command("", "show the versions of this program and of its libraries", "version"),
    "features": Command("", "show the features of the server, and which --without leaves out", "features"),
    "help": Command("[COMMAND | TOPIC]", "explain a command or a group of options", "help"),
}


class CommandParser(argparse.ArgumentParser):
    """A parser of arguments that raises StartError with the nearest flag."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reads arguments. -h is no flag of its own, or -hf, a flag of llama.cpp, would be one with a value."""
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args(["--help" if word == "-h" else word for word in words], namespace)

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: --(\w+)", message)
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        names = [name[2:] for action in shown for name in action.option_strings if name.startswith("--")]
        raise StartError(f"{message} ({hint(unknown[1] if unknown else '', names, '--help lists the options', '--')})")


def hint(word: str, known: Iterable[str], otherwise: str, prefix: str = "") -> str:
    """Returns a question for the known word that is most similar, with the prefix of all; otherwise, if none is."""
    near = difflib.get_close_matches(word, known, 1)
    return f"did you mean {prefix}{near[0]}?" if near else otherwise


def parser(name: str, notes: str = "") -> CommandParser:
    """Returns the parser of a command's own arguments. notes: behind its help."""
    row = COMMANDS[name]
    result = CommandParser(
        prog=f"lean_ovms {name}",
        usage=f"%(prog)s {row.usage} [--option VALUE ...]".replace("  ", " "),
        description=f"{row.help[0].upper()}{row.help[1:]}.",
        epilog=notes,
        allow_abbrev=False,
        add_help=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--help", action="help", help="show this, as -h does")
    return result


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def add_json(result: CommandParser) -> CommandParser:
    """Returns the parser with --json, for what programs read."""
    result.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return result


def print_json(value: object) -> None:
    """Prints what a command found, for programs."""
    print(json.dumps(value, indent=2))


def listed() -> str:
    """Returns the commands with their help, for people."""
    return table([(f"  {name} {row.usage}", row.help) for name, row in COMMANDS.items()])
