"""`lean-ovms help [COMMAND | TOPIC]` prints the same as --help of a command, or --help=TOPIC of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import ExitStatus, StartError
from ..manifest import named
from .arguments import parse, without_of
from .commands import commands, explain


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Prints the help and exits. Raises StartError for an unknown topic."""
    if len(argv) > 1:
        raise StartError("help accepts one command or topic")
    topic = argv[0] if argv and argv[0] not in ("-h", "--help") else ""
    known = commands(without_of(argv, environ))
    if topic in known and topic != "help" and (row := known[topic]).reader:
        named(row.package, row.reader)(["--help"], environ)
    if topic in known and known[topic].option:
        explain(known[topic])
    parse(["--help" if topic in known or not topic else f"--help={topic}"], environ)
    return ExitStatus.OK
