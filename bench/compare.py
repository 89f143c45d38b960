"""All servers at the same work on the same weights: one table. The bare loops are the limit.

In turns: GenAI's pipeline and the paged engine in bare loops (in each case the better one is the limit), lean_ovms,
FastAPI with LLMPipeline, llama.cpp's llama-server (Q8_0), vLLM (bf16). A rival that is not installed is left out with
a line that says how to install it. Closed loop at 1, 8 and 32 streams, open loop at two rates; every request
generates all its tokens. `start` is from the command to the first token, `idle` the CPU of a second without requests.

--real: SmolLM2-135M and Gemma 3 270M, which tools.real_models fetches, at tasks about an English text: GGUF files by
ours and llama-server, the IR (if the folder has it) by ours, the bare loops and OVMS, safetensors by vLLM; drafts off
and on.

--shape: at the sizes of a real model, with random weights (tools.random_model), of each kind in --weights, which race
together. A kind is served by those that load it: int8 by ours, the bare loops and plain, Q8_0 by ours and llama-server.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import figures, race, rivals
from bench import weights as forms
from bench.processes import ROOT, KvBudget, closing, rss_mb
from bench.race import Contestant
from bench.recipes import RECIPES
from bench.report import Report, options, shown
from bench.rivals import Entries
from bench.weights import Unavailable
from bench.work import WORDS, Work
from lean_ovms.config import DEMO_MODEL
from lean_ovms.engine.loading import json_tokenizer
from lean_ovms.features.gguf.child.tokenizer import GgufTokenizer

BARE = {"bare: GenAI": "bare", "bare: paged": "bare_paged"}
RIVALS = ("plain", "llama-server", "vllm", "ovms")
COLUMNS = (
    *("case", "who", "prompt_tokens", "tokens_per_s", "of_limit", "prompt_tokens_per_s", "ttft_ms", "itl_ms"),
    *("cpu_s_per_1000", "failed"),
)
ONCE = ("who", "rss_mb", "peak_mb", "start_s", "idle_cpu")
ENGLISH = ROOT / "tests/data/real/english.txt"
SHARED = 0.9
"""The part of a prompt that all have in common in the cases with a shared prefix."""
TEMPLATE = 64
"""Tokens of the chat template, at most."""


def main(argv: Sequence[str]) -> None:
    """The race, and the table."""
    parser = options("compare", __doc__)
    race.add_options(parser)
    rivals.add_options(parser)
    parser.add_argument("--real", default="", metavar="FOLDER", help="of tools.real_models: these models race")
    parser.add_argument("--shape", default="", help="of tools.random_model, qwen3-0.6b for example")
    parser.add_argument("--weights", default="int8,int4,Q8_0,Q4_0", help="kinds of the shape's; vLLM: safetensors")
    parser.add_argument("--models", default="build/models", help="where shapes are, or are made")
    parser.add_argument("--prompts", default="", help="tokens of a prompt, separated by commas: 128,1000,4000,16000")
    parser.add_argument("--shared", action="store_true", help="with --prompts: also with nine tenths in common")
    parser.add_argument("--leave_out", default="", metavar="NAMES", help="contestants, separated by semicolons")
    parser.add_argument("--starts", type=int, default=1, help="how often each server is started; the median counts")
    parser.add_argument("--markdown", default="", metavar="FILE", help="write the table there too")
    parser.set_defaults(concurrency="1,8,32", rate=None, tokens=48, ignore_eos=True)
    args = parser.parse_args(argv)
    args.rate = args.rate if args.rate is not None else "" if args.shape or args.real else "4,12"
    args.prompts = args.prompts or ("512,4000" if args.real else "")
    report, rows, once = Report("compare", args), list[dict[str, Any]](), list[dict[str, Any]]()
    args.text = ENGLISH.read_text("utf-8").split() if args.real else ()
    for tokenizer, kinds in races(args):
        entries = Entries(args)
        with closing(entries):
            entries.room = max(map(int, args.concurrency.split(","))), room(args)
            starts: dict[str, dict[str, float]] = {}
            for label, weights in (kinds or {"": entries.weights}).items():
                entries.take(label, weights)
                starts |= enter(args, report, entries)
            for sized, more in sizes(args, tokenizer):
                report.rows.clear()
                race.race(sized, report, entries.contestants, more)
                rows += report.rows
            once += of_servers(entries.contestants, starts)
    rows = [compact(row) for row in rows]
    for row in once:
        report.row(case="once", **row)
    report.table("all: spreads are the rounds' median (low to high), latencies p50/p99", COLUMNS, rows)
    report.table("each server", ONCE, once)
    if args.markdown:
        Path(args.markdown).write_text(markdown(COLUMNS, rows) + "\n" + markdown(ONCE, once))


def races(args: argparse.Namespace) -> Iterator[tuple[Path, dict[str, forms.Weights]]]:
    """Yields, for each model, the place of its tokenizer, and its weights by the kind that contestants' names end in.

    Without kinds all have the weights that the options name.
    """
    if args.real:
        yield from forms.of_real_models(Path(args.real).resolve())
    elif args.shape:
        folder = Path(args.models).resolve() / args.shape
        yield folder, forms.of_shape(folder, args.shape, args.weights.split(","))
    else:
        yield Path(args.model_path or args.gguf or DEMO_MODEL), {}


def room(args: argparse.Namespace) -> int:
    """Tokens of a sequence, at most."""
    most = max((int(tokens) for tokens in args.prompts.split(",") if tokens), default=0)
    return -(-(most * 5 // 4 + args.tokens + TEMPLATE) // 256) * 256 if most else 1024


def sizes(args: argparse.Namespace, folder: Path) -> Iterator[tuple[argparse.Namespace, str]]:
    """Yields the options of each length of prompts, and what the names of its cases end in."""
    if not args.prompts:
        yield args, ""
        return
    library = GgufTokenizer(folder).library if folder.is_file() else json_tokenizer.read(folder)
    if not library:
        raise SystemExit(f"--prompts needs {folder / json_tokenizer.FILE}")
    text = getattr(args, "text", ())[:1000] or random.Random(1).choices(WORDS, k=1000)
    per_word = len(library.encode(" ".join(text))) / len(text)
    for tokens in map(int, args.prompts.split(",")):
        words = max(1, round((tokens - TEMPLATE / 2) / per_word))
        for shared in (0, round(SHARED * words)) if args.shared else (0,):
            sized = copy.copy(args)
            sized.words, sized.shared_words = words - shared, shared
            yield sized, f", {tokens} tokens" + (", shared" if shared else "")


def enter(args: argparse.Namespace, report: Report, entries: Entries) -> dict[str, dict[str, float]]:
    """Start the contestants one after the other: for each server the seconds to its first token."""
    weights = entries.weights
    chosen = [*race.server_options(args, weights.served), *weights.options]
    without = ["--ngram_speculation", "false", *chosen]
    mine = {"lean_ovms": chosen} if weights.served or not (args.shape or args.real) else {}
    if mine and args.shape:  # random weights repeat a token, so that drafts would always be right
        mine = {"lean_ovms": without}
    if mine and args.real:
        mine = {"lean_ovms": without, "lean_ovms, drafts": chosen}
    left_out = args.leave_out.split(";")
    for name, module in BARE.items() if mine and not weights.has("gguf") else ():
        if name not in left_out:
            entries.bare(name, module, mine["lean_ovms"])
    starts: dict[str, dict[str, float]] = {}
    theirs = args.rival or RIVALS
    if args.shape or args.real:
        theirs = [name for name in theirs if weights.has(RECIPES[name].form)]
    for name in (name for name in (*mine, *theirs) if name not in left_out):
        seconds = []
        try:
            for again in range(args.starts):
                if again:
                    entries.leave()
                entry = entries.ours(mine[name], name) if name in mine else entries.rival(name)
                entry.run(Work(prompts=["Hello!"], max_tokens=1, concurrency=1))
                seconds.append(time.perf_counter() - entry.began)
                entry.stop()
        except (Unavailable, SystemExit) as reason:
            report.say(f"{name} is left out: {reason}")
            continue
        starts[entry.name] = figures.spread(seconds, 2)
    return starts


def of_servers(contestants: Sequence[Contestant], starts: Mapping[str, dict[str, float]]) -> list[dict[str, Any]]:
    """What is measured once of each contestant, after the race: memory and idle CPU."""
    for contestant in contestants:
        contestant.go_on()
    pids = {c.name: {role: pid for role, pid in c.pids.items() if role != "client"} for c in contestants}
    accounts = {name: KvBudget(roles) for name, roles in pids.items()}
    time.sleep(1.0)
    idle = {name: sum(account.since().values()) for name, account in accounts.items()}
    rows = []
    for name, roles in pids.items():
        row: dict[str, Any] = {"who": name, "rss_mb": round(sum(map(rss_mb, roles.values())))}
        row["peak_mb"] = round(sum(rss_mb(pid, "VmHWM") for pid in roles.values()))
        row["idle_cpu"] = f"{100 * idle[name]:.1f} %"
        if name in starts:
            row["start_s"] = starts[name]
        rows.append(row)
    return rows


def compact(row: Mapping[str, Any]) -> dict[str, Any]:
    """A case's row as the table has it: CPU of all the contestant's processes, without the load's."""
    cpu = sum(seconds for role, seconds in row["cpu_s_per_1000_tokens"].items() if role != "client")
    short = {name: {mark: row[name].get(mark, 0.0) for mark in ("p50", "p99")} for name in ("ttft_ms", "itl_ms")}
    first, alone = row["ttft_ms"].get("p50", 0.0) / 1e3, row["streams"] == 1 and not row["rate"]
    return {
        "case": row["case"],
        "who": row["who"],
        "prompt_tokens": row["prompt_tokens"],
        "tokens_per_s": row["tokens_per_s"],
        "of_limit": row.get("ratio", ""),
        "prompt_tokens_per_s": round(row["prompt_tokens"] / first, 1) if alone and first else "",
        **short,
        "cpu_s_per_1000": round(cpu, 3),
        "failed": row["failed"],
    }


def markdown(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """A table for RESULTS.md."""
    head = "| " + " | ".join(name.replace("_", " ") for name in columns) + " |\n" + "|---" * len(columns) + "|\n"
    return head + "".join("| " + " | ".join(shown(row.get(name, "")) for name in columns) + " |\n" for row in rows)
