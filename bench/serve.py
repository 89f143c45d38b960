"""Compares the server over sockets with the limit, openvino_genai in a bare loop, in turns on the same work."""

from __future__ import annotations

from collections.abc import Sequence

from bench import race
from bench.entries import Entries
from bench.processes import closing
from bench.report import Report, options


def main(argv: Sequence[str]) -> None:
    """Runs the bare loop and the server."""
    parser = options("serve", __doc__)
    race.add_options(parser)
    args = parser.parse_args(argv)
    chosen = race.server_options(args)
    report, entries = Report("serve", args), Entries(args)
    with closing(entries):
        entries.bare("limit", "genai", chosen)
        entries.ours(chosen)
        race.race(args, report, entries.contestants)
    race.tables(report, "against the limit")
