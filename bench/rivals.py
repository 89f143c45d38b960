"""Any OpenAI-compatible servers at the same work with the same client, in turns with ours and with the limit.

--rival takes a name of recipes.py, NAME=URL of a running server, or NAME=COMMAND with {port} (and {model}) in it.
"""

from __future__ import annotations

import argparse
import os
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from bench import race, weights
from bench.processes import Server, Worker, closing, free_port, lean_ovms
from bench.race import Contestant
from bench.recipes import RECIPES, filled
from bench.report import Report, options
from bench.serve import over_http, runner
from bench.weights import Unavailable, Weights, given


def main(argv: Sequence[str]) -> None:
    """The race."""
    parser = options("rivals", __doc__)
    race.add_options(parser)
    add_options(parser)
    parser.add_argument("--no_limit", action="store_true", help="leave out the bare loop; ratios are to ours then")
    args = parser.parse_args(argv)
    report = Report("rivals", args)
    entries = Entries(args)
    chosen = race.server_options(args, entries.weights.served)
    with closing(entries):
        if not args.no_limit:
            entries.bare("limit", "bare", chosen)
        entries.ours(chosen)
        for rival in args.rival or ["plain"]:
            try:
                entries.rival(rival)
            except Unavailable as reason:
                raise SystemExit(f"{rival}: {reason}") from None
        race.race(args, report, entries.contestants)
    race.tables(report, "rivals")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of rivals."""
    parser.add_argument("--rival", action="append", default=[], help=f"{', '.join(RECIPES)}, NAME=URL or NAME=COMMAND")
    parser.add_argument("--rival_model", default="demo", help="the model's name at the rivals")
    parser.add_argument("--path", default="/v1/chat/completions", help="at the rivals; OVMS: /v3/chat/completions")
    parser.add_argument(
        "--ready", default="/v1/models", help="path that answers 200 when a rival that is started is ready"
    )
    parser.add_argument(
        "--program", action="append", default=[], metavar="NAME=FILE", help="the executable of a rival by name"
    )
    parser.add_argument("--threads", type=int, default=0, help="of a recipe; 0: one for the embedded model, else cores")
    weights.add_options(parser)


class Entries:
    """Contestants, and the processes that they need. weights: those of the next ones; label: what their names end in.

    room: sequences at once that a rival has to have room for, and tokens of each.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self.weights, self.label = given(args), ""
        self.room = 32, 1024
        self._programs = dict(pair.partition("=")[::2] for pair in args.program)
        self._load = Worker("client")
        self._closers: list[Worker | Server | Weights] = [self.weights, self._load]
        self._fields: dict[str, object] = {"ignore_eos": True} if args.ignore_eos else {}
        self.contestants: list[Contestant] = []

    def close(self) -> None:
        """End all processes."""
        for thing in self._closers:
            thing.close()

    def take(self, label: str, weights: Weights) -> None:
        """The next contestants have these weights."""
        self.weights, self.label = weights, label
        self._closers.append(weights)

    def _enter(self, entry: Contestant, **more: object) -> Contestant:
        self.contestants.append(replace(entry, name=f"{entry.name} {self.label}".strip(), weights=self.label, **more))
        return self.contestants[-1]

    def bare(self, name: str, module: str, chosen: Sequence[str]) -> None:
        """A bare loop in a process of its own."""
        self._closers.append(worker := Worker(module, *chosen))
        run = runner(worker, ignore_eos=self._args.ignore_eos)
        self._enter(Contestant(name=name, run=run, pids={"engine": worker.pid}), limit=True)

    def ours(self, chosen: Sequence[str], name: str = "lean_ovms") -> Contestant:
        """lean_ovms with these options."""
        self._closers.append(server := lean_ovms(chosen))
        return self._enter(over_http(name, self._load, server, self._args.ignore_eos))

    def rival(self, rival: str) -> Contestant:
        """A rival, started if it has to be. Raises Unavailable for one that is not installed."""
        args = self._args
        name, _, where = rival.partition("=")
        fields = {"model": args.rival_model, **self._fields}
        if where.startswith("http://"):
            parts = urlsplit(where)
            there = {"host": parts.hostname, "port": parts.port or 80, "path": args.path, "fields": fields}
            run = runner(self._load, **there)
            return self._enter(Contestant(name=name, run=run, pids={"client": self._load.pid}, where=there))
        server = self._start(name, where)
        self._closers.append(server)
        recipe = RECIPES.get(name)
        fields |= recipe.fields if recipe else {}
        path = recipe.path if recipe else args.path
        entry = over_http(name, self._load, server, False, path=path, fields=fields)
        return self._enter(entry, restless=recipe is not None and recipe.restless)

    def leave(self) -> None:
        """The last contestant ends, so that it can be started again."""
        self.contestants.pop()
        self._closers.pop().close()

    def _start(self, name: str, command: str) -> Server:
        """A rival's own server on a free port, once it is ready. command: "" for a recipe's."""
        port, args = free_port(), self._args
        threads = args.threads or (os.cpu_count() if self.weights.served else 1)  # as lean_ovms takes by its size
        if command:
            line, ready = filled(command, {"port": str(port), "model": self.weights["model"]}), args.ready
        elif name not in RECIPES:
            raise Unavailable(f"neither a recipe ({', '.join(RECIPES)}) nor NAME=URL nor NAME=COMMAND")
        else:
            recipe = RECIPES[name]
            program = recipe.found(self._programs.get(name, ""))
            if not program:
                raise Unavailable(f"not installed: {recipe.install}")
            slots, tokens = self.room
            own = {"program": program, "port": port, "threads": threads, "slots": slots, "context": slots * tokens}
            values = ChainMap({key: str(value) for key, value in own.items()}, self.weights)
            line, ready = filled(recipe.command, values), recipe.ready
            if recipe.template and self.weights.template:
                line += [recipe.template, self.weights.template]
        return Server(line, port, ready)
