"""Prefix reuse: conversations with a long system prompt in common, turn by turn against the bare loops.

Each round has a new system prompt and two conversations with it; the first turn of the first is computed whole, all
else is found in the prefix cache but for the newest message. The history has lean_ovms's answers, for all. After the
rounds the server's cached_tokens are checked against the arithmetic of blocks: whole blocks of the prompt that are
tokens of an earlier prompt and its answer, without the answer's last token, which is never computed.

--restart measures the cache on disk instead: `bench.restart`.
"""

from __future__ import annotations

import argparse
import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench import figures, plots, race, restart, rivals
from bench.client import payload
from bench.compare import BARE
from bench.processes import Worker, closing
from bench.report import Report, options, tick
from bench.rivals import Entries
from bench.turn import Ask, Messages, Reply, over_http
from bench.weights import Unavailable
from bench.work import prompts

COLUMNS = ("case", "who", "ttft_ms", "ttft_added_ms", "prompt_tokens", "cached_tokens")


def main(argv: Sequence[str]) -> None:
    """One row for each turn that is shown and each contestant; then the check."""
    if "--restart" in argv:
        restart.main([one for one in argv if one != "--restart"])
        return
    parser = options("prefix", __doc__)
    parser.add_argument("--model_path", default="", help="another model than the embedded one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=24, help="of an answer at most")
    parser.add_argument("--system_words", type=int, default=1000, help="the demo model has two tokens a word")
    parser.add_argument("--words", type=int, default=12, help="of a user's message")
    parser.add_argument("--shown", default="1,2,5,10,20", help="turns in the table, separated by commas")
    parser.add_argument("--block_size", type=int, default=32, help="of the KV cache, in tokens")
    parser.add_argument("--server_option", action="append", default=[], metavar="NAME=VALUE", help="of lean_ovms")
    rivals.add_options(parser)
    parser.set_defaults(ignore_eos=False)
    args = parser.parse_args(argv)
    report, entries = Report("prefix", args), Entries(args)
    chosen = race.server_options(args)
    workers = {name: Worker(module, *chosen) for name, module in BARE.items()}
    with closing(entries, *workers.values()):
        asks: dict[str, Ask] = {name: in_worker(worker, args.tokens) for name, worker in workers.items()}
        ours = entries.ours(chosen).where
        asks["lean_ovms"] = over_http(ours, args.tokens)
        for rival in args.rival:
            try:
                entry = entries.rival(rival)
                asks[entry.name] = over_http(entry.where, args.tokens)
            except (Unavailable, SystemExit) as reason:
                report.say(f"{rival} is left out: {reason}")
        seen = rounds(args, report, asks)
        checked = check(args, ours)
    rows = table(args, seen)
    for row in rows:
        report.row(**row)
    report.table("time to first token, median of the rounds (low to high); added to the better bare loop", COLUMNS)
    wrong = [row for row in checked if row["reported"] != row["expected"]]
    report.row(case="cached_tokens", turns=len(checked), wrong=wrong)
    report.say(f"cached_tokens: {len(checked) - len(wrong)} of {len(checked)} turns as computed by blocks")
    for row in wrong:
        report.say(", ".join(f"{name} {value}" for name, value in row.items()))
    if args.plots:
        plots.prefix(args.plots, seen)


def conversation(seed: int, number: int, args: argparse.Namespace) -> list[str]:
    """A system prompt by its seed, and the user's messages of one of the conversations with it."""
    system = prompts(seed, 1, args.system_words)
    return system + prompts(seed * 1009 + number, args.turns, args.words, 0.5)


def rounds(args: argparse.Namespace, report: Report, asks: Mapping[str, Ask]) -> dict[tuple[int, int], dict]:
    """By conversation and turn: the replies of each contestant, in the order of the rounds."""
    seen: dict[tuple[int, int], dict[str, list[Reply]]] = {}
    with report.progress((args.rounds + 1) * 2, "warming up") as bar:
        for number in range(args.rounds + 1):
            for which in (1, 2):
                system, *users = conversation(args.seed * 1_000_003 + number, which, args)
                history = [{"role": "system", "content": system}]
                for turn, user in enumerate(users, 1):
                    history.append({"role": "user", "content": user})
                    order = list(asks) if (number + turn) % 2 else list(reversed(asks))
                    replies = {name: asks[name](history) for name in order}
                    history.append({"role": "assistant", "content": replies["lean_ovms"].text})
                    for name in asks:
                        if number:
                            seen.setdefault((which, turn), {}).setdefault(name, []).append(replies[name])
                tick(bar, f"round {number + 1}")
    return seen


def in_worker(worker: Worker, tokens: int) -> Ask:
    """A turn in a bare loop."""

    def ask(messages: Messages) -> Reply:
        answer: dict[str, Any] = worker.ask({"messages": messages, "max_tokens": tokens})
        return Reply(first_s=answer["first"][0], text=answer["text"], usage={"prompt_tokens": answer["prompt_tokens"]})

    return ask


class Blocks:
    """The arithmetic of a prefix cache that forgets nothing: which whole blocks of tokens it has."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: set[int] = set()

    def cached(self, prompt: Sequence[int]) -> int:
        """Tokens of a prompt that it has; at least the last one is always computed."""
        found = 0
        for key in self._keys(prompt[:-1]):
            if key not in self._known:
                break
            found += self._size
        return found

    def add(self, tokens: Sequence[int]) -> None:
        """These have been computed."""
        self._known.update(self._keys(tokens))

    def _keys(self, tokens: Sequence[int]) -> Iterable[int]:
        key = 0
        for at in range(0, len(tokens) - self._size + 1, self._size):
            key = hash((key, *tokens[at : at + self._size]))
            yield key


def check(args: argparse.Namespace, where: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Two more conversations, each turn with the cached_tokens that the server reports and those that are right."""
    ask, blocks, rows = over_http(where, args.tokens, return_token_ids=True), Blocks(args.block_size), []
    for which in (1, 2):
        system, *users = conversation(args.seed * 1_000_003 - 1, which, args)
        messages = [{"role": "system", "content": system}]
        for turn, user in enumerate(users, 1):
            messages.append({"role": "user", "content": user})
            ids = tokenize(where, messages)
            reply = ask(messages)
            reported = reply.usage.get("prompt_tokens_details", {}).get("cached_tokens")
            rows.append(
                {
                    "conversation": which,
                    "turn": turn,
                    "prompt": len(ids),
                    "reported": reported,
                    "expected": blocks.cached(ids),
                }
            )
            blocks.add([*ids, *reply.ids][:-1])
            messages.append({"role": "assistant", "content": reply.text})
    return rows


def tokenize(where: Mapping[str, Any], messages: Messages) -> list[int]:
    """The ids of a prompt."""
    request = payload(
        "/tokenize", {"model": where["fields"]["model"], "messages": messages}, headers="Connection: close\r\n"
    )
    with socket.create_connection(("127.0.0.1", where["port"]), 60) as sock:
        sock.sendall(request)
        answer = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    ids: list[int] = json.loads(answer.partition(b"\r\n\r\n")[2])["tokens"]
    return ids


def table(args: argparse.Namespace, seen: Mapping[tuple[int, int], Mapping[str, Sequence[Reply]]]) -> list[dict]:
    """The turns that are shown: those of the first conversation, and the second one's first."""
    places = [(1, int(turn)) for turn in args.shown.split(",") if int(turn) <= args.turns] + [(2, 1)]
    rows = []
    for which, turn in places:
        replies = seen[which, turn]
        firsts = {name: [reply.first_s for reply in those] for name, those in replies.items()}
        limit = min((firsts[name] for name in BARE), key=lambda values: figures.quantile(values, 0.5))
        for name, those in replies.items():
            row: dict[str, Any] = {
                "case": f"turn {turn}" if which == 1 else f"another conversation, turn {turn}",
                "who": name,
                "ttft_ms": figures.spread([1e3 * value for value in firsts[name]], 2),
                "prompt_tokens": those[-1].usage.get("prompt_tokens", ""),
                "cached_tokens": (those[-1].usage.get("prompt_tokens_details") or {}).get("cached_tokens", ""),
            }
            if firsts[name] is not limit:
                row["ttft_added_ms"] = figures.added(firsts[name], limit)
            rows.append(row)
    return rows
