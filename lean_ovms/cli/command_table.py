"""The table of commands: the core's, each with a module in this folder, and those of the features.

A command without a function only stands for options: arguments.py reads it, and commands.py runs it.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NoReturn

from ..composition import compose
from ..config import shown
from ..errors import StartError
from ..manifest import Command

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


def listed(without: str = "") -> str:
    """Returns a list of the commands with their help, for people."""
    return table([(f"  {name} {row.usage}", row.help) for name, row in commands(without).items()])
