"""Embeddings over real sockets against the bare forward pass with ideal batches, the same new texts in turns.

The limit has its texts tokenized before and all of them at once; the server tokenizes, queues, and answers in base64.
For one text alone there is a second limit, with pauses: a server's engine waits for the next request of its client.
--rival adds another OpenAI-compatible server.
"""

from __future__ import annotations

import random
import select
import shlex
import statistics
import time
from collections.abc import Sequence

from bench import figures
from bench.client import Lane, Load, payload
from bench.processes import KvBudget, Server, Worker, closing, free_port, lean_ovms
from bench.report import Report, options, tick
from bench.work import Outcome, Work

COMMON = """the of and to in is that it was for on are with his they at be this from have or by one had not but what
all were when we there can an your which their said if do will each about how up out them then she many
some so these would other into has more her two like him see time could no make than first been its who
now people my made over did down only way find use may water long little very after words called just
where most know"""
WORDS = COMMON.split()
NAME, PATH = "embed", "/v1/embeddings"
PAUSED = "bare, with pauses"
PAUSE_S = 0.003
"""Between two lone texts: about what a server and its client take from one forward pass to the next."""
LONG, LONGEST = 190, 240
"""Words of long texts: all-MiniLM-L6-v2 takes 256 tokens."""


def main(argv: Sequence[str]) -> None:
    """One row for each case and contestant; then the ratios to the limit."""
    parser = options("embed", __doc__)
    parser.add_argument("--model_path", required=True, help="an embeddings model, such as all-MiniLM-L6-v2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--rival", action="append", default=[], metavar="NAME=COMMAND", help="{port}, {model} are filled"
    )
    parser.add_argument("--no_behind", action="store_true", help="leave out the list of 2,000 texts (minutes in torch)")
    args = parser.parse_args(argv)
    report = Report("embed", args)
    bare = Worker("bare_embed", args.model_path)
    servers = {"lean_ovms": lean_ovms(["--model_path", args.model_path, "--model_name", NAME])}
    for pair in args.rival:
        name, _, rival = pair.partition("=")
        chosen = free_port()
        servers[name] = Server(shlex.split(rival.format(port=chosen, model=args.model_path)), chosen)
    with closing(bare, *servers.values()), report.progress(args.rounds + 1, "warming up") as bar:
        seen: dict[tuple[str, str], list[float]] = {}
        for number in range(args.rounds + 1):
            dice = random.Random(f"{args.seed} {number}")
            for case, figures_of in once(dice, bare, servers, not args.no_behind).items():
                for who, value in figures_of.items():
                    if number:
                        seen.setdefault((case, who), []).append(value)
            tick(bar, f"round {number + 1}")
    cases, order = list(dict.fromkeys(case for case, _ in seen)), ["bare", PAUSED, *servers]
    for case, who in ((case, who) for case in cases for who in order if (case, who) in seen):
        values, limit = seen[case, who], seen[case, "bare"]
        ratio = {} if who == "bare" else {"ratio": figures.ratios(values, limit)}
        report.row(case=case, who=who, value=figures.spread(values), **ratio)
    report.table("texts per second; ms where the case says so; ratio to the limit", ("case", "who", "value", "ratio"))


def once(
    dice: random.Random, bare: Worker, servers: dict[str, Server], with_behind: bool
) -> dict[str, dict[str, float]]:
    """One round of every case: figures by contestant, who are in an order of chance."""
    servers = dict(dice.sample(list(servers.items()), len(servers)))
    found: dict[str, dict[str, float]] = {}
    short, long, single = texts(dice, 256, 30), texts(dice, 24, LONG), texts(dice, 256, 30)
    cases = {
        "list of 256 short": (short, [short], 1),
        "list of 24 long": (long, [long], 1),
        "64 connections, one short each": (single, [[text] for text in single], 64),
    }
    for case, (chosen, requests, connections) in cases.items():
        limit = bare.ask({"texts": chosen})
        rate, cpu = found.setdefault(case, {}), found.setdefault(f"{case}, CPU ms a text", {})
        rate["bare"], cpu["bare"] = len(chosen) / limit["seconds"], 1e3 * limit["cpu"] / len(chosen)  # type: ignore[operator]
        for who, server in servers.items():
            budget = KvBudget(server.all_pids)
            rate[who] = len(chosen) / closed_loop(server.port, requests, connections).wall_s
            cpu[who] = 1e3 * sum(budget.since().values()) / len(chosen)
    alone = texts(dice, 40, 30)
    found["one short alone, ms"] = {
        who: 1e3 * statistics.median(bare.ask({"texts": alone, "alone": True, "pause_s": pause_s})["passes"])  # type: ignore[call-overload]
        for who, pause_s in (("bare", 0.0), (PAUSED, PAUSE_S))
    }
    for who, server in servers.items():
        done = closed_loop(server.port, [[text] for text in alone], 1)
        found["one short alone, ms"][who] = 1e3 * statistics.median(done.total)
    if with_behind:
        many = texts(dice, 2000, 30)
        found["one short behind 2,000, slowest ms"] = {"bare": 1e3 * bare.ask({"texts": many})["slowest"]}  # type: ignore[operator]
        for who, server in servers.items():
            found["one short behind 2,000, slowest ms"][who] = 1e3 * behind(server.port, many, texts(dice, 60, 20))
    front = servers["lean_ovms"]
    budget = KvBudget({"front": front.pids["front"]})
    closed_loop(front.port, [[text] for text in single], 8)
    found["CPU of the front end for a text, us"] = {
        "bare": 20.0, "lean_ovms": 1e6 * budget.since()["front"] / len(single),
    }  # fmt: skip
    return found


def texts(dice: random.Random, count: int, mean: int) -> list[str]:
    """Texts of common words, each about a token: lognormal lengths for short ones, normal ones for long ones."""
    lengths = [
        int(dice.lognormvariate(0, 0.6) * mean * 0.83) if mean < LONG else int(dice.gauss(mean, mean / 10))
        for _ in range(count)
    ]
    return [" ".join(dice.choices(WORDS, k=max(3, min(length, LONGEST)))) for length in lengths]


def request(chosen: list[str]) -> bytes:
    """A POST as the openai client sends it."""
    return payload(PATH, {"model": NAME, "input": chosen, "encoding_format": "base64"})


def closed_loop(port: int, lists: list[list[str]], connections: int) -> Outcome:
    """Send each list as one request, over that many connections, one at a time on each."""
    work = Work(prompts=[], max_tokens=0, concurrency=min(connections, len(lists)))
    done = Load(work, ("127.0.0.1", port), [request(chosen) for chosen in lists], PATH).run()
    if done.failed:
        raise SystemExit(f"{done.failed} requests failed")
    return done


def behind(port: int, many: list[str], short: list[str]) -> float:
    """The slowest of short requests that are sent one after the other while a long list is computed, in seconds."""
    busy = Lane(("127.0.0.1", port), PATH)
    busy.send(request(many), time.perf_counter())
    time.sleep(0.1)
    slowest = 0.0
    for text in short:
        slowest = max(slowest, *closed_loop(port, [[text]], 1).total)
        if select.select([busy.sock], [], [], 0)[0]:
            break  # the list is done
    busy.finish()
    busy.sock.close()
    return slowest
