"""The contestants of `compare`: bare loops, lean_ovms, and any OpenAI-compatible servers."""

from __future__ import annotations

import argparse
import os
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from bench.processes import Server, Worker, free_port, lean_ovms
from bench.race import Contestant
from bench.recipes import RECIPES, Recipe, filled
from bench.weights import Unavailable, Weights

PATH = "/v3/chat/completions"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that select the contestants."""
    parser.add_argument("--rival", action="append", default=[], help=f"{', '.join(RECIPES)}, NAME=URL or NAME=COMMAND")
    parser.add_argument("--rival_model", default="demo", help="the model's name on the rivals")
    parser.add_argument("--path", default="/v1/chat/completions", help="path on rivals; OVMS: /v3/chat/completions")
    parser.add_argument("--ready", default="/v1/models", help="path that is 200 when a rival's command is ready")
    parser.add_argument("--program", action="append", default=[], metavar="NAME=FILE", help="the executable of a rival")
    parser.add_argument("--threads", type=int, default=0, help="of rivals; 0: 1 for the embedded model, else all cores")


class Entries:
    """The contestants and their processes.

    `weights` and `label` are for the contestants that are entered next; their names end in the label. `room` is the
    number of concurrent sequences that a rival must have room for, and the tokens of each.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self.label = ""
        self.room = 32, 1024
        self._load = Worker("client")
        self._closers: list[Worker | Server | Weights] = [self._load]
        self._eos = {"ignore_eos": True} if args.ignore_eos else {}
        self.contestants: list[Contestant] = []

    def close(self) -> None:
        """Ends all processes."""
        for thing in self._closers:
            thing.close()

    def take(self, label: str, weights: Weights) -> None:
        """Sets the weights of the next contestants."""
        self.weights, self.label = weights, label
        self._closers.append(weights)

    def _enter(self, name: str, worker: Worker, asked: dict[str, Any], **more: Any) -> Contestant:
        """Adds a contestant whose work is done by a worker process.

        Args:
            name: Its name, without the label.
            worker: The process that does the work, or that sends it to a server.
            asked: What each question to the worker contains besides the Work.
            **more: Further fields of the Contestant.
        """
        name = f"{name} {self.label}".strip()
        entry = Contestant(name=name, run=lambda work: worker.run(work, **asked), weights=self.label, **more)
        self.contestants.append(entry)
        return entry

    def bare(self, name: str, kind: str, chosen: Sequence[str]) -> None:
        """Starts a process with a bare loop."""
        self._closers.append(worker := Worker("bare", kind, *chosen))
        self._enter(name, worker, self._eos, pids={"engine": worker.pid}, limit=True)

    def _over_http(self, name: str, server: Server, path: str, fields: Mapping[str, Any], **more: Any) -> Contestant:
        """Adds a server. Its CPU times include those of the client, which shares the machine."""
        self._closers.append(server)
        where = {"port": server.port, "path": path, "fields": {**fields, **self._eos}}
        pids = {**server.pids, "client": self._load.pid}
        return self._enter(name, self._load, where, pids=pids, began=server.began, **more)

    def ours(self, chosen: Sequence[str], name: str = "lean_ovms") -> Contestant:
        """Starts lean_ovms with these options."""
        return self._over_http(name, lean_ovms(chosen), PATH, {"model": "demo"})

    def rival(self, rival: str) -> Contestant:
        """Adds a rival, and starts it unless it runs already. Raises Unavailable if it is not installed."""
        args = self._args
        name, _, where = rival.partition("=")
        fields = {"model": args.rival_model}
        if where.startswith("http://"):
            parts = urlsplit(where)
            there = {"host": parts.hostname, "port": parts.port or 80, "path": args.path}
            asked = {**there, "fields": {**fields, **self._eos}}
            return self._enter(name, self._load, asked, pids={"client": self._load.pid})
        if where:
            line = filled(where, {"port": str(port := free_port()), "model": self.weights["model"]})
            return self._over_http(name, Server(line, port, args.ready), args.path, fields)
        if name not in RECIPES:
            raise Unavailable(f"neither a recipe ({', '.join(RECIPES)}) nor NAME=URL nor NAME=COMMAND")
        recipe = RECIPES[name]
        fields |= recipe.fields
        return self._over_http(name, self._cooked(recipe, name), recipe.path, fields, restless=recipe.restless)

    def _cooked(self, recipe: Recipe, name: str) -> Server:
        """Starts the server of a recipe on a free port, and waits until it is ready."""
        program = recipe.found(dict(pair.partition("=")[::2] for pair in self._args.program).get(name, ""))
        if not program:
            raise Unavailable(f"not installed: {recipe.install}")
        port, (slots, tokens) = free_port(), self.room
        threads = self._args.threads or (os.cpu_count() if self.weights.path else 1)  # as lean_ovms uses by default
        own = {"program": program, "port": port, "threads": threads, "slots": slots, "context": slots * tokens}
        line = filled(recipe.command, ChainMap({key: str(value) for key, value in own.items()}, self.weights))
        if recipe.template and self.weights.template:
            line += [recipe.template, self.weights.template]
        return Server(line, port, recipe.ready)
