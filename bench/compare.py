"""Compares servers with the same weights and the same client, in one table. Bare loops are the limit.

The contestants take turns: bare loops of GenAI's pipeline and of the paged engine, lean_ovms, and each --rival. The
faster bare loop is the limit in each case. By default the rivals are FastAPI with LLMPipeline, llama.cpp's llama-server
(Q8_0), vLLM (bf16) and OVMS. A rival that is not installed is left out, with a line that says how to install it. Every
request generates all its tokens. `start` is the time from the command to the first token, `idle` the CPU time in a
second without requests.

--rival is one of these names, NAME=URL of a running server, or NAME=COMMAND, which contains {port} and may contain
{model}.

--weights NAME=PATH, once or more often, replaces the embedded model by a folder of OpenVINO files, a GGUF file or a
folder of safetensors. All of these take part in the same run. Each is served by the contestants that can load it, and
its name is in their rows. tools.random_model makes weights with a real model's sizes, tools.real_models fetches real
ones.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

from bench import race
from bench.entries import Entries, add_options
from bench.processes import ROOT, CpuTimes, closing, rss_mb
from bench.race import Contestant
from bench.recipes import RECIPES
from bench.report import Report, options
from bench.weights import Unavailable, Weights
from bench.work import WORDS, Work
from lean_ovms.config import DEMO_MODEL
from lean_ovms.engine.loading.text_encoder import FILE, JsonTokenizer
from lean_ovms.features.gguf.child.tokenizer import GgufTokenizer

BARE = {"bare: GenAI": "genai", "bare: paged": "paged"}
RIVALS = ("plain", "llama-server", "vllm", "ovms")
COLUMNS = (
    *("case", "who", "prompt_tokens", "tokens_per_s", "of_limit", "prompt_tokens_per_s", "ttft_ms", "itl_ms"),
    *("cpu_s_per_1000", "failed"),
)
ONCE = ("who", "rss_mb", "peak_mb", "start_s", "idle_cpu")
ENGLISH = ROOT / "tests/data/real/english.txt"
SHARED = 0.9
"""The fraction of a prompt that all prompts have in common, in cases with a shared prefix."""
TEMPLATE = 64
"""The most tokens that a chat template adds."""


def main(argv: Sequence[str]) -> None:
    """Runs the comparison and prints the table."""
    parser = options("compare", __doc__)
    race.add_options(parser)
    add_options(parser)
    parser.add_argument("--weights", action="append", default=[], metavar="NAME=PATH", help="all with one tokenizer")
    parser.add_argument("--english", action="store_true", help="tasks about an English text instead of random words")
    parser.add_argument("--drafts", action="store_true", help="also measure lean_ovms with n-gram drafts")
    parser.add_argument("--prompts", default="", help="prompt lengths in tokens: 128,1000,4000,16000")
    parser.add_argument("--shared", action="store_true", help="with --prompts: also prompts that share 90 %%")
    parser.add_argument("--leave_out", default="", metavar="NAMES", help="contestants, separated by semicolons")
    parser.add_argument("--no_limit", action="store_true", help="no bare loops; ratios are to lean_ovms then")
    parser.set_defaults(concurrency="1,8,32", tokens=48, ignore_eos=True)
    args = parser.parse_args(argv)
    report, rows = Report("compare", args), list[dict[str, Any]]()
    args.text = ENGLISH.read_text("utf-8").split() if args.english else ()
    kinds = {name: Weights(path) for name, path in (pair.split("=", 1) for pair in args.weights)}
    kinds = kinds or {"": Weights(args.model_path)}
    entries, starts = Entries(args), dict[str, float]()
    with closing(entries):
        entries.room = max(map(int, args.concurrency.split(","))), room(args)
        for label, weights in kinds.items():
            entries.take(label, weights)
            starts |= enter(args, report, entries)
        for sized, more in sizes(args, Path(next(iter(kinds.values())).path or DEMO_MODEL)):
            report.rows.clear()
            race.race(sized, report, entries.contestants, more)
            rows += map(compact, report.rows)
        once = of_servers(entries.contestants, starts)
    for row in once:
        report.row(case="once", **row)
    report.table("all: spreads are the rounds' median (low to high), latencies p50/p99", COLUMNS, rows)
    report.table("each server", ONCE, once)


def room(args: argparse.Namespace) -> int:
    """Returns the number of tokens for which servers must have room in a sequence."""
    most = max((int(tokens) for tokens in args.prompts.split(",") if tokens), default=0)
    return -(-(most * 5 // 4 + args.tokens + TEMPLATE) // 256) * 256 if most else 1024


def sizes(args: argparse.Namespace, folder: Path) -> Iterator[tuple[argparse.Namespace, str]]:
    """Yields the options for each length of prompts, and what is appended to the names of its cases."""
    if not args.prompts:
        yield args, ""
        return
    library = GgufTokenizer(folder).library if folder.is_file() else JsonTokenizer.read(folder)
    if not library:
        raise SystemExit(f"--prompts needs {folder / FILE}")
    text = args.text[:1000] or random.Random(1).choices(WORDS, k=1000)
    per_word = len(library.encode(" ".join(text))) / len(text)
    for tokens in map(int, args.prompts.split(",")):
        words = max(1, round((tokens - TEMPLATE / 2) / per_word))
        for shared in (0, round(SHARED * words)) if args.shared else (0,):
            sized = copy.copy(args)
            sized.words, sized.shared_words = words - shared, shared
            yield sized, f", {tokens} tokens" + (", shared" if shared else "")


def enter(args: argparse.Namespace, report: Report, entries: Entries) -> dict[str, float]:
    """Starts the contestants one after the other. Returns the seconds to the first token of each server."""
    weights = entries.weights
    chosen = [*race.server_options(args, weights.served), *weights.options]
    mine = {"lean_ovms": ["--ngram_speculation", "false", *chosen]}  # with random weights, drafts are always right
    mine |= {"lean_ovms, drafts": chosen} if args.drafts else {}
    if weights.form == "hf":
        mine = {}
    left_out = args.leave_out.split(";")
    for name, kind in BARE.items() if weights.form == "model" and not args.no_limit else ():
        if name not in left_out:
            entries.bare(name, kind, mine["lean_ovms"])
    starts: dict[str, float] = {}
    theirs = [name for name in args.rival or RIVALS if name not in RECIPES or weights.serves(RECIPES[name].form)]
    for name in (name for name in (*mine, *theirs) if name not in left_out):
        try:
            entry = entries.ours(mine[name], name) if name in mine else entries.rival(name)
            entry.run(Work(prompts=["Hello!"], max_tokens=1, concurrency=1))
        except (Unavailable, SystemExit) as reason:
            report.say(f"{name} is left out: {reason}")
            continue
        if entry.began:
            starts[entry.name] = round(time.perf_counter() - entry.began, 2)
        entry.signal(SIGSTOP)
    return starts


def of_servers(contestants: Sequence[Contestant], starts: Mapping[str, float]) -> list[dict[str, Any]]:
    """Measures the memory and the idle CPU time of each contestant once, after the race."""
    for contestant in contestants:
        contestant.signal(SIGCONT)
    pids = {c.name: {role: pid for role, pid in c.pids.items() if role != "client"} for c in contestants}
    accounts = {name: CpuTimes(roles) for name, roles in pids.items()}
    time.sleep(1.0)
    idle = {name: sum(account.since().values()) for name, account in accounts.items()}
    return [
        {
            "who": name,
            "rss_mb": round(sum(map(rss_mb, roles.values()))),
            "peak_mb": round(sum(rss_mb(pid, "VmHWM") for pid in roles.values())),
            "start_s": starts.get(name, ""),
            "idle_cpu": f"{100 * idle[name]:.1f} %",
        }
        for name, roles in pids.items()
        if roles
    ]


def compact(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of the table for a case. The CPU time is that of all processes of the contestant, without the
    load."""
    cpu = sum(seconds for role, seconds in row["cpu_s_per_1000_tokens"].items() if role != "client")
    short = {name: {mark: row[name].get(mark, 0.0) for mark in ("p50", "p99")} for name in ("ttft_ms", "itl_ms")}
    first, alone = row["ttft_ms"].get("p50", 0.0) / 1e3, row["streams"] == 1 and not row["rate"]
    return {
        **{name: row[name] for name in ("case", "who", "prompt_tokens", "tokens_per_s", "failed")},
        **short,
        "of_limit": row.get("ratio", ""),
        "prompt_tokens_per_s": round(row["prompt_tokens"] / first, 1) if alone and first else "",
        "cpu_s_per_1000": round(cpu, 3),
    }
