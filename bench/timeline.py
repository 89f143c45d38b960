"""Where one request's time to first token goes: through client, front end, pipe and engine child.

The server records a time at every border between packages (traced.py). Requests with new prompts are sent one after
the other, in turns with the bare loop on the same prompts; the times between marks are medians over them.
"""

from __future__ import annotations

import json
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import figures, plots, race
from bench.client import chat, payload
from bench.processes import Worker, closing, lean_ovms
from bench.report import Report, options
from bench.work import Work, prompts

ORDER = (
    ("front", "request is here", "client to front end"),
    ("front", "HTTP read", "HTTP read"),
    ("front", "fields read", "JSON and fields read"),
    ("front", "template rendered", "template rendered"),
    ("front", "frame written", "frame written to the pipe"),
    ("child", "frame read", "pipe to the child"),
    ("child", "encoded, checked", "tokenized, checked"),
    ("child", "added", "added to the pipeline"),
    ("child", "step begins", "acceptance sent"),
    ("child", "step ends", "first token computed"),
    ("front", "token is here", "pipe to the front end"),
    ("front", "event rendered", "text, JSON, SSE"),
    ("front", "event written", "written to the socket"),
    ("client", "answer is here", "front end to client"),
)
"""(process, mark, what the time since the last mark was spent with), in the order in which a request passes them."""


def main(argv: Sequence[str]) -> None:
    """One table, one picture."""
    parser = options("timeline", __doc__)
    race.add_options(parser)
    args = parser.parse_args(argv)
    args.requests = args.requests or 100
    report = Report("timeline", args)
    chosen = race.server_options(args)
    texts = prompts(args.seed, args.requests + 10, args.words, spread=0.2)
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "marks"))
        server, bare = lean_ovms(chosen, ("bench.traced", file)), Worker("bare", *chosen)
        with closing(server, bare):
            spans, limit = in_turns(report, server.port, bare, texts)
        marks = {name: json.loads(Path(f"{file}.{name}").read_text()) for name in ("front", "child")}
    rows = segments(spans[10:], marks)
    total = [sum(row[name] for name in row) for row in rows]
    names = [title for _, _, title in ORDER]
    medians = {name: figures.quantile([row[name] for row in rows], 0.5) for name in names}
    for name in names:
        values = [row[name] for row in rows]
        report.row(case=name, ms=figures.quantiles(values))
    report.row(case="all: time to first token", ms=figures.quantiles(total))
    report.row(case="the limit: bare loop", ms=figures.quantiles(limit[10:]))
    report.table("one request, step by step (medians need not add up)", ("case", "ms"))
    if args.plots:
        plots.timeline(args.plots, medians, figures.quantile(limit[10:], 0.5))


def in_turns(
    report: Report, port: int, bare: Worker, texts: list[str]
) -> tuple[list[tuple[float, float]], list[float]]:
    """(sent, first byte) of every prompt, and the bare loop's times to first token."""
    spans, limit = [], []
    with socket.create_connection(("127.0.0.1", port)) as sock, report.progress(len(texts), "requests") as bar:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for text in texts:
            spans.append(ask(sock, text))
            limit += bare.run(Work(prompts=[text], max_tokens=2, concurrency=1)).first
            time.sleep(0.005)
            bar.update(bar.task_ids[0], advance=1)
    return spans, limit


def ask(sock: socket.socket, text: str) -> tuple[float, float]:
    """One request; when it was sent and when its first event arrived: the head comes before it."""
    data = payload("/v3/chat/completions", chat(text, 2, {"model": "demo"}))
    sent = time.perf_counter()
    sock.sendall(data)
    answer = b""
    while b"data: " not in answer:
        answer += sock.recv(1 << 16)
    first = time.perf_counter()
    while not answer.endswith(b"\r\n0\r\n\r\n"):
        answer += sock.recv(1 << 16)
    return sent, first


def segments(spans: list[tuple[float, float]], marks: dict[str, list[tuple[str, float]]]) -> list[dict[str, float]]:
    """Per request, the seconds between each mark and the one before it.

    A mark counts where it is passed for the first time after the mark before it, so other events do not matter; of
    the steps of a long prompt the last before the first token counts.
    """
    rows = []
    for sent, first in spans:
        row, last = {}, sent
        for process, mark, title in ORDER:
            now = first if process == "client" else passed(marks[process], mark, last, first)
            row[title] = now - last
            last = now
        rows.append(row)
    return rows


def passed(marks: list[tuple[str, float]], name: str, after: float, limit: float) -> float:
    """When the mark was first passed after a time; that time itself if it was not passed until the limit."""
    return next((t for mark, t in marks if mark == name and after <= t <= limit), after)
