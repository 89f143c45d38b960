"""Compares embeddings over sockets with bare forward passes in ideal batches, in turns on the same new texts.

The limit gets all texts at once, already tokenized. The server has to tokenize, queue, and encode the answers in
base64. For single texts the limit pauses before each pass, because a server's engine waits there for the client's next
request. --rival adds another OpenAI-compatible server.
"""

from __future__ import annotations

import random
import shlex
import statistics
from collections.abc import Sequence

from bench import figures
from bench.client import Load, payload
from bench.processes import CpuTimes, Server, Worker, closing, free_port, lean_ovms
from bench.report import Report, options
from bench.work import WORDS, Outcome, Work

NAME, PATH = "embed", "/v1/embeddings"
PAUSE_S = 0.003
"""Seconds of pause between two single texts: about the time from one forward pass to the next in a server."""
LONG, LONGEST = 190, 240
"""The mean and the largest number of words in long texts. all-MiniLM-L6-v2 takes 256 tokens."""


def main(argv: Sequence[str]) -> None:
    """Reports a row for each case and contestant, with its ratio to the limit."""
    parser = options("embed", __doc__)
    parser.add_argument("--model_path", required=True, help="an embeddings model, such as all-MiniLM-L6-v2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rival", action="append", default=[], metavar="NAME=COMMAND", help="with {port} and {model}")
    args = parser.parse_args(argv)
    report = Report("embed", args)
    bare = Worker("bare_embed", args.model_path)
    servers = {"lean_ovms": lean_ovms(["--model_path", args.model_path, "--model_name", NAME])}
    for pair in args.rival:
        name, _, rival = pair.partition("=")
        port = free_port()
        servers[name] = Server(shlex.split(rival.format(port=port, model=args.model_path)), port)
    seen: dict[str, dict[str, list[float]]] = {}
    with closing(bare, *servers.values()):
        for number in range(args.rounds + 1):
            report.doing(f"round {number}")
            for case, found in once(random.Random(f"{args.seed} {number}"), bare, servers).items():
                for who in ("bare", *servers) if number else ():
                    seen.setdefault(case, {}).setdefault(who, []).append(found[who])
    for case, values in seen.items():
        for who, taken in values.items():
            ratio = {} if who == "bare" else {"ratio": figures.ratios(taken, values["bare"])}
            report.row(case=case, who=who, value=figures.spread(taken), **ratio)
    report.table("texts per second; ms where the case says so; ratio to the limit", ("case", "who", "value", "ratio"))


def once(dice: random.Random, bare: Worker, servers: dict[str, Server]) -> dict[str, dict[str, float]]:
    """Runs one round of all cases, with the contestants in random order. Returns the figures by case and contestant."""
    found: dict[str, dict[str, float]] = {}
    short, long, single = texts(dice, 256, 30), texts(dice, 24, LONG), texts(dice, 256, 30)
    cases = {
        "list of 256 short": (short, [short], 1),
        "list of 24 long": (long, [long], 1),
        "64 connections, one short each": (single, [[text] for text in single], 64),
    }
    order = dice.sample(list(servers.items()), len(servers))
    for case, (chosen, requests, connections) in cases.items():
        limit = bare.ask({"texts": chosen})
        rate, cpu = found.setdefault(case, {}), found.setdefault(f"{case}, CPU ms a text", {})
        rate["bare"], cpu["bare"] = len(chosen) / limit["seconds"], 1e3 * limit["cpu"] / len(chosen)  # type: ignore[operator]
        for who, server in order:
            budget = CpuTimes(server.pids)
            rate[who] = len(chosen) / closed_loop(server.port, requests, connections).wall_s
            cpu[who] = 1e3 * sum(budget.since().values()) / len(chosen)
    lone = texts(dice, 40, 30)
    passes = bare.ask({"texts": lone, "alone": True, "pause_s": PAUSE_S})["passes"]
    alone = found["one short alone, ms"] = {"bare": 1e3 * statistics.median(passes)}  # type: ignore[call-overload]
    for who, server in order:
        alone[who] = 1e3 * statistics.median(closed_loop(server.port, [[text] for text in lone], 1).total)
    return found


def texts(dice: random.Random, count: int, mean: int) -> list[str]:
    """Returns texts of common words, most of which are one token. Short lengths are lognormal, long ones normally
    distributed."""
    lengths = [
        int(dice.lognormvariate(0, 0.6) * mean * 0.83) if mean < LONG else int(dice.gauss(mean, mean / 10))
        for _ in range(count)
    ]
    return [" ".join(dice.choices(WORDS, k=max(3, min(length, LONGEST)))) for length in lengths]


def request(chosen: list[str]) -> bytes:
    """Returns a request as the openai client sends it."""
    return payload(PATH, {"model": NAME, "input": chosen, "encoding_format": "base64"})


def closed_loop(port: int, lists: list[list[str]], connections: int) -> Outcome:
    """Sends each list as one request, over a number of connections with one request at a time."""
    work = Work(prompts=[], max_tokens=0, concurrency=min(connections, len(lists)))
    done = Load(work, ("127.0.0.1", port), [request(chosen) for chosen in lists], PATH).run()
    if done.failed:
        raise SystemExit(f"{done.failed} requests failed")
    return done
