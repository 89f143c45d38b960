"""Gives several contestants the same work in turns, and reports their figures. Used by engine, serve and compare.

In each round all contestants get the same new prompts, in alternating order, and ratios are computed within a round. So
changes in the machine's speed cancel out, and prefix caches do not help.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from signal import SIGCONT, SIGSTOP
from statistics import median

from bench import figures
from bench.processes import CpuTimes, rss_mb
from bench.report import Report
from bench.work import Outcome, Work, case_name, poisson, prompts, tasks, turns


@dataclass(kw_only=True)
class Contestant:
    """A participant of a race: a bare loop or a server."""

    name: str
    run: Callable[[Work], Outcome]
    """Performs one Work."""
    pids: dict[str, int]
    """The ids of its processes, by role."""
    began: float = 0.0
    """perf_counter() at the start of its process."""
    weights: str = ""
    """The label of its weights."""
    limit: bool = False
    """Whether it is a bare loop, to which all contestants with the same weights are compared."""
    restless: bool = False
    """Whether it computes while idle. Its processes are stopped while other contestants work."""

    def signal(self, number: int) -> None:
        """Sends SIGSTOP or SIGCONT to the processes of a restless contestant."""
        for role, pid in self.pids.items() if self.restless else ():
            if role != "client":
                os.kill(pid, number)


@dataclass(kw_only=True)
class Lap:
    """The runs of one contestant in one case, in the order of the rounds."""

    outcomes: list[Outcome] = field(default_factory=list)
    cpu_s: list[dict[str, float]] = field(default_factory=list)

    def pooled(self) -> Outcome:
        """Returns all runs as one Outcome."""
        total = Outcome()
        for outcome in self.outcomes:
            total.add(outcome)
        return total


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a race."""
    parser.add_argument("--concurrency", default="1,8,32,64", help="streams at once, separated by commas")
    parser.add_argument("--rate", default="", help="also open loops: requests per second, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=0, help="requests per round; 0: three per stream, at least 8")
    parser.add_argument("--seconds", type=float, default=0.0, help="no request of a round starts later; 0: no limit")
    parser.add_argument("--tokens", type=int, default=64, help="tokens generated per request")
    parser.add_argument("--words", type=int, default=40, help="words of a prompt; two tokens each for the demo model")
    parser.add_argument("--shared_words", type=int, default=0, help="words in front that all prompts share")
    parser.add_argument("--ignore_eos", action="store_true", help="always generate all tokens (random models)")
    add_server_options(parser)


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose how lean_ovms is started."""
    parser.add_argument("--model_path", default="", help="a model other than the embedded one")
    parser.add_argument("--server_option", action="append", default=[], metavar="NAME=VALUE", help="of lean_ovms")


def server_options(args: argparse.Namespace, served: str = "") -> list[str]:
    """Returns the command line of lean_ovms. `served` is a model to serve in place of --model_path."""
    path = served or args.model_path
    chosen = ["--model_path", path, "--model_name", "demo"] if path else []
    for pair in args.server_option:
        name, _, value = pair.partition("=")
        chosen += [f"--{name}", value]
    return chosen


def cases(args: argparse.Namespace) -> list[tuple[int, float]]:
    """Returns the cases: (streams, 0) for closed loops, then (connections to begin with, requests per second) for open
    loops."""
    closed = [(int(n), 0.0) for n in args.concurrency.split(",") if n]
    return closed + [(8, float(rate)) for rate in args.rate.split(",") if rate]


def work(args: argparse.Namespace, streams: int, rate: float, number: int) -> Work:
    """Returns the work of a round, which is the same for all contestants and new in each round."""
    count = args.requests or max(8, 3 * streams)
    count = count if rate else max(count, streams)
    seed = args.seed * 1_000_003 + streams * 1009 + int(rate * 101) * 7 + number
    asked = prompts(seed, count, args.words, 0.2, args.shared_words)
    return Work(
        prompts=tasks(seed, count, args.words, 0.2, args.text) if getattr(args, "text", ()) else asked,
        max_tokens=args.tokens,
        concurrency=streams,
        arrivals=poisson(seed, count, rate) if rate else [],
        seconds=args.seconds,
    )


def race(args: argparse.Namespace, report: Report, contestants: list[Contestant], more: str = "") -> None:
    """Runs all rounds of all cases, and adds a row to the report for each contestant when a case ends.

    In each case, a contestant's limit is the best bare loop with the same weights, or the first contestant with these
    weights if there is no bare loop.

    Args:
        args: The options.
        report: Receives the rows.
        contestants: The contestants.
        more: The end of all cases' names.
    """
    warm_up(args, contestants)
    for streams, rate in cases(args):
        laps = {contestant.name: Lap() for contestant in contestants}
        for number, contestant in turns(contestants, args.rounds):
            report.doing(f"{case_name(streams, rate)}: {contestant.name}")
            contestant.signal(SIGCONT)
            lap, accounts = laps[contestant.name], CpuTimes(contestant.pids)
            lap.outcomes.append(contestant.run(work(args, streams, rate, number)))
            lap.cpu_s.append(accounts.since())
            contestant.signal(SIGSTOP)
        for contestant in contestants:
            same = [each for each in contestants if each.weights == contestant.weights]
            loops = [each for each in same if each.limit] or same[:1]
            limit = best([laps[each.name] for each in loops], bool(rate))
            row = summary(contestant, laps[contestant.name], limit)
            report.row(case=case_name(streams, rate) + more, streams=streams, rate=rate, **row)


def best(laps: list[Lap], open_loop: bool) -> Lap:
    """Returns the lap with the highest throughput, or, in an open loop, in which the throughput is given, the lowest
    latency."""
    if open_loop:
        return min(laps, key=lambda lap: figures.quantile(lap.pooled().total, 0.5))
    return max(laps, key=lambda lap: median(outcome.tokens_per_s for outcome in lap.outcomes))


def warm_up(args: argparse.Namespace, contestants: list[Contestant]) -> None:
    """Runs short work first, because the first prompts and batches of each size cost more than later ones."""
    for streams in sorted({streams for streams, _ in cases(args)}):
        for contestant in contestants:
            words = min(args.words, max(8, 320 // streams))
            texts = prompts(-streams, streams + 2, words, shared=min(args.shared_words, words))
            contestant.signal(SIGCONT)
            contestant.run(Work(prompts=texts, max_tokens=4, concurrency=streams))
            contestant.signal(SIGSTOP)


def summary(contestant: Contestant, lap: Lap, limit: Lap) -> dict[str, object]:
    """Returns the figures of a contestant in a case. ratio, ttft_added and itl_added compare it to its limit."""
    pooled = lap.pooled()
    tokens = sum(pooled.tokens) or 1
    cpu = {role: sum(part[role] for part in lap.cpu_s) / tokens * 1e3 for role in contestant.pids}
    figures_ = {
        "who": contestant.name,
        "weights": contestant.weights,
        "requests": len(pooled.total),
        "failed": pooled.failed,
        "prompt_tokens": round(pooled.prompt_tokens / max(1, len(pooled.total))),
        "tokens": tokens,
        "tokens_per_s": figures.spread([o.tokens_per_s for o in lap.outcomes], 1),
        "ttft_ms": figures.quantiles(pooled.first),
        "itl_ms": figures.quantiles(pooled.gaps),
        "tpot_ms": figures.quantiles(pooled.tpot),
        "e2e_ms": figures.quantiles(pooled.total, digits=1),
        "cpu_s_per_1000_tokens": {role: round(seconds, 3) for role, seconds in cpu.items()},
        "rss_mb": {role: round(rss_mb(pid)) for role, pid in contestant.pids.items()},
    }
    if lap is not limit:
        figures_ |= against(lap, limit)
    return figures_


def against(lap: Lap, limit: Lap) -> dict[str, object]:
    """Compares a lap to the limit round by round: throughput as ratios, latencies as differences."""

    def each(which: Lap, name: str, mark: float) -> list[float]:
        return [figures.quantile(getattr(outcome, name), mark) for outcome in which.outcomes]

    def late(run: Outcome) -> float:
        return figures.quantile(run.first, 0.99)

    pooled, base = lap.pooled(), limit.pooled()
    return {
        "ratio": figures.ratios([o.tokens_per_s for o in lap.outcomes], [o.tokens_per_s for o in limit.outcomes]),
        "ttft_added_ms": figures.added(each(lap, "first", 0.5), each(limit, "first", 0.5)),
        "ttft_added_p99_ms": figures.added([late(pooled)], [late(base)])["median"],
        "itl_added_us": figures.added(each(lap, "tpot", 0.5), each(limit, "tpot", 0.5), 1e6),
    }


AGAINST = ("case", "who", "tokens_per_s", "ratio", "ttft_added_ms", "ttft_added_p99_ms", "itl_added_us")
LATENCY = ("case", "who", "ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")
COST = ("case", "who", "requests", "failed", "prompt_tokens", "tokens", "cpu_s_per_1000_tokens", "rss_mb")


def tables(report: Report, title: str) -> None:
    """Prints all cases."""
    report.table(f"{title}: spreads are the rounds' median (low to high)", AGAINST)
    report.table("latencies: p50/p90/p99/max", LATENCY)
    report.table("what it costs, by process", COST)
