"""Any OpenAI-compatible servers at the same work with the same client, in turns with ours and with the limit.

--rival takes a name of recipes.py, NAME=URL of a running server, or NAME=COMMAND with {port} (and {model}) in it.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from urllib.parse import urlsplit

from bench import plots, race
from bench.processes import Server, Worker, closing, free_port, lean_ovms
from bench.race import Contestant
from bench.recipes import RECIPES
from bench.report import Report, options
from bench.serve import over_http, runner
from lean_ovms.config import Config


def main(argv: Sequence[str]) -> None:
    """The race."""
    parser = options("rivals", __doc__)
    race.add_options(parser)
    parser.add_argument("--rival", action="append", default=[], help=f"{', '.join(RECIPES)}, NAME=URL or NAME=COMMAND")
    parser.add_argument("--rival_model", default="demo", help="the model's name at the rivals")
    parser.add_argument("--path", default="/v1/chat/completions", help="at the rivals; OVMS: /v3/chat/completions")
    parser.add_argument(
        "--ready", default="/v1/models", help="path that answers 200 when a rival that is started is ready"
    )
    parser.add_argument("--no_limit", action="store_true", help="leave out the bare loop; ratios are to ours then")
    args = parser.parse_args(argv)
    chosen = race.server_options(args)
    report = Report("rivals", args)
    load = Worker("client")
    closers: list[Worker | Server] = [load]
    contestants = []
    with closing(Closer(closers)):
        if not args.no_limit:
            closers.append(bare := Worker("bare", *chosen))
            run = runner(bare, ignore_eos=args.ignore_eos)
            contestants.append(Contestant(name="limit", run=run, pids={"engine": bare.pid}))
        closers.append(ours := lean_ovms(chosen))
        contestants.append(over_http("lean_ovms", load, ours, args.ignore_eos))
        for rival in args.rival or ["plain"]:
            contestants.append(enter(rival, args, load, closers))
        results = race.race(args, report, contestants)
    race.tables(report, "rivals")
    if args.plots:
        plots.race(args.plots, "rivals", results)


class Closer:
    """Closes what a list holds at the end."""

    def __init__(self, things: list) -> None:
        self._things = things

    def close(self) -> None:
        """All of them."""
        for thing in self._things:
            thing.close()


def enter(rival: str, args: argparse.Namespace, load: Worker, closers: list) -> Contestant:
    """A rival as a contestant, started if it has to be."""
    name, _, where = rival.partition("=")
    where = where or RECIPES[name].command
    fields = {"model": args.rival_model, **({"ignore_eos": True} if args.ignore_eos else {})}
    if where.startswith("http://"):
        parts = urlsplit(where)
        there = {"host": parts.hostname, "port": parts.port or 80, "path": args.path, "fields": fields}
        return Contestant(name=name, run=runner(load, **there), pids={"client": load.pid})
    closers.append(server := start(name, where, args))
    fields = {**fields, **(RECIPES[name].fields if name in RECIPES else {})}
    return over_http(name, load, server, False, path=args.path, fields=fields)


def start(name: str, command: str, args: argparse.Namespace) -> Server:
    """The rival's own server on a free port, once it is ready."""
    port = free_port()
    values = {"{port}": str(port), "{model}": str(Config(model_path=args.model_path).model_dir)}
    line = shlex.split(command)
    for mark, value in values.items():
        line = [part.replace(mark, value) for part in line]
    return Server(line, port, RECIPES[name].ready if name in RECIPES else args.ready)
