"""Compares the server over sockets with the limit, openvino_genai in a bare loop, in turns on the same work.

It also measures the engine process without HTTP, which shows how much of the difference is due to the pipe. `engine` is
this benchmark without the server.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench import race
from bench.entries import Entries
from bench.processes import closing
from bench.report import Report, options


def main(argv: Sequence[str], name: str = "serve") -> None:
    """Runs the bare loop, the engine process and, except as `engine`, the server."""
    parser = options(name, __doc__)
    race.add_options(parser)
    parser.add_argument("--no_child", action="store_true", help="leave out the child without HTTP")
    args = parser.parse_args(argv)
    chosen = race.server_options(args)
    report, entries = Report(name, args), Entries(args)
    with closing(entries):
        entries.bare("limit", "genai", chosen)
        if not args.no_child or name == "engine":
            entries.child(chosen)
        if name == "serve":
            entries.ours(chosen)
        race.race(args, report, entries.contestants)
    race.tables(report, "against the limit")


def engine(argv: Sequence[str]) -> None:
    """Runs the bare loop and the engine process."""
    main(argv, "engine")
