"""The whole server over real sockets against the limit: openvino_genai in a bare loop, same work, same run.

Also the engine child without HTTP, which shows how much of the difference is the pipe. `engine` is this without the
server.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench import race
from bench.entries import Entries
from bench.processes import closing
from bench.report import Report, options


def main(argv: Sequence[str], name: str = "serve") -> None:
    """Bare loop, child, server; without the server as `engine`."""
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
    """Bare loop, child."""
    main(argv, "engine")
