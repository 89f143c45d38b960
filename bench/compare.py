"""All servers at the same work on the same weights: one table and one plot. The bare loops are the limit.

In turns: GenAI's pipeline and the paged engine in bare loops (in each case the better one is the limit), lean_ovms,
FastAPI with LLMPipeline, llama.cpp's llama-server (Q8_0), vLLM (bf16). A rival that is not installed is left out with
a line that says how to install it. Closed loop at 1, 8 and 32 streams, open loop at two rates; every request
generates all its tokens. `start` is from the command to the first token, `idle` the CPU of a second without requests.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import figures, plots, race, rivals, turn
from bench.processes import KvBudget, closing, rss_mb
from bench.race import Contestant
from bench.report import Report, options, shown
from bench.rivals import Entries
from bench.weights import Unavailable
from bench.work import Work

BARE = {"bare: GenAI": "bare", "bare: paged": "bare_paged"}
RIVALS = ("plain", "llama-server", "vllm")
QUESTIONS = ("Hello!", "Who are you?", "What is 2 + 3?", "Spell the word garden.", "What is the capital of France?")
COLUMNS = ("case", "who", "tokens_per_s", "of_limit", "ttft_ms", "itl_ms", "cpu_s_per_1000", "failed")
ONCE = ("who", "rss_mb", "start_s", "idle_cpu", "same_answers", "prompt_tokens")


def main(argv: Sequence[str]) -> None:
    """The race, and the table."""
    parser = options("compare", __doc__)
    race.add_options(parser)
    rivals.add_options(parser)
    parser.add_argument("--starts", type=int, default=1, help="how often each server is started; the median counts")
    parser.add_argument("--markdown", default="", metavar="FILE", help="write the table there too")
    parser.set_defaults(concurrency="1,8,32", rate="4,12", tokens=48, ignore_eos=True)
    args = parser.parse_args(argv)
    report, entries = Report("compare", args), Entries(args)
    with closing(entries):
        starts = enter(args, report, entries)
        results = race.race(args, report, entries.contestants, limits=len(BARE))
        once = of_servers(entries.contestants, starts)
    rows = [compact(row) for row in report.rows]
    for row in once:
        report.row(case="once", **row)
    report.table("all: spreads are the rounds' median (low to high), latencies p50/p99", COLUMNS, rows)
    report.table("each server", ONCE, once)
    if args.markdown:
        Path(args.markdown).write_text(markdown(COLUMNS, rows) + "\n" + markdown(ONCE, once))
    if args.plots:
        plots.compare(args.plots, rows, once)
        plots.race(args.plots, "compare", results)


def enter(args: argparse.Namespace, report: Report, entries: Entries) -> dict[str, dict[str, float]]:
    """Start the contestants one after the other: for each server the seconds to its first token."""
    chosen = race.server_options(args)
    for name, module in BARE.items():
        entries.bare(name, module, chosen)
    starts: dict[str, dict[str, float]] = {}
    for name in ("lean_ovms", *(args.rival or RIVALS)):
        seconds = []
        try:
            for again in range(args.starts):
                if again:
                    entries.leave()
                entry = entries.ours(chosen) if name == "lean_ovms" else entries.rival(name)
                entry.run(Work(prompts=["Hello!"], max_tokens=1, concurrency=1))
                seconds.append(time.perf_counter() - entry.began)
        except (Unavailable, SystemExit) as reason:
            report.say(f"{name} is left out: {reason}")
            continue
        starts[entry.name] = figures.spread(seconds, 2)
    return starts


def of_servers(contestants: Sequence[Contestant], starts: Mapping[str, dict[str, float]]) -> list[dict[str, Any]]:
    """What is measured once of each contestant, after the race: memory, idle CPU, and whether answers agree."""
    pids = {c.name: {role: pid for role, pid in c.pids.items() if role != "client"} for c in contestants}
    accounts = {name: KvBudget(roles) for name, roles in pids.items()}
    time.sleep(1.0)
    idle = {name: sum(account.since().values()) for name, account in accounts.items()}
    answers = {c.name: [answer(c.where, text) for text in QUESTIONS] for c in contestants if c.where}
    rows = []
    for name, roles in pids.items():
        row: dict[str, Any] = {"who": name, "rss_mb": round(sum(map(rss_mb, roles.values())))}
        row["idle_cpu"] = f"{100 * idle[name]:.1f} %"
        if name in starts:
            row["start_s"] = starts[name]
        if name in answers:
            row |= agreement(answers[name], answers["lean_ovms"])
        rows.append(row)
    return rows


def answer(where: Mapping[str, Any], question: str) -> tuple[str, int]:
    """A server's greedy answer to a question, and how many tokens the prompt had."""
    fields = {name: value for name, value in where["fields"].items() if name != "ignore_eos"}
    reply = turn.over_http({**where, "fields": fields}, 24)([{"role": "user", "content": question}])
    return reply.text.strip(), reply.usage.get("prompt_tokens", 0)


def agreement(theirs: Sequence[tuple[str, int]], ours: Sequence[tuple[str, int]]) -> dict[str, str]:
    """How many answers are the same text, and how many prompts the same number of tokens."""
    same = sum(a[0] == b[0] for a, b in zip(theirs, ours, strict=True))
    prompts = sum(a[1] == b[1] for a, b in zip(theirs, ours, strict=True))
    return {"same_answers": f"{same} of {len(ours)}", "prompt_tokens": f"{prompts} of {len(ours)} the same"}


def compact(row: Mapping[str, Any]) -> dict[str, Any]:
    """A case's row as the table has it: CPU of all the contestant's processes, without the load's."""
    cpu = sum(seconds for role, seconds in row["cpu_s_per_1000_tokens"].items() if role != "client")
    short = {name: {mark: row[name].get(mark, 0.0) for mark in ("p50", "p99")} for name in ("ttft_ms", "itl_ms")}
    return {
        "case": row["case"],
        "who": row["who"],
        "tokens_per_s": row["tokens_per_s"],
        "of_limit": row.get("ratio", ""),
        **short,
        "cpu_s_per_1000": round(cpu, 3),
        "failed": row["failed"],
    }


def markdown(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """A table for RESULTS.md."""
    head = "| " + " | ".join(name.replace("_", " ") for name in columns) + " |\n" + "|---" * len(columns) + "|\n"
    return head + "".join("| " + " | ".join(shown(row.get(name, "")) for name in columns) + " |\n" for row in rows)
