"""`lean-ovms help [COMMAND | TOPIC]`: the same as --help of a command, or --help=TOPIC of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module

from ..errors import StartError
from ..server import exit_status
from .arguments import parse
from .command_table import COMMANDS


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Prints the help and exits. Raises StartError for an unknown topic."""
    if len(argv) > 1:
        raise StartError("help takes one command or topic")
    topic = argv[0] if argv else ""
    if topic in COMMANDS and topic != "help" and (module := COMMANDS[topic].module):
        import_module(f".{module}", __package__).main(["--help"], environ)
    parse(["--help" if topic in COMMANDS or not topic else f"--help={topic}"], environ)
    return exit_status.OK
