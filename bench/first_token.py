"""CPU time of a request's parts up to its first token: front end and engine child in one process, without sockets.

Each part is measured warm and after the processor's own caches were filled with other data, as they are after a pause
or a step. CPU time is valid also where other programs want the cores; waiting, waking and the kernel's part of a
message are not in it (`timeline` has them). The front end and the child are the real ones, with the real model.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import uvloop

from bench import path
from bench.figures import quantile
from bench.report import Report, options
from bench.work import prompts
from lean_ovms.config import Config
from lean_ovms.engine import protocol
from lean_ovms.engine.client.engine import sampling_fields
from lean_ovms.engine.generation.task import GenerationTask
from lean_ovms.engine.paged.pipeline import PagedPipeline
from lean_ovms.engine.worker.loop import Worker
from lean_ovms.types import SamplingParams

Row = dict[str, float]
"""Seconds of CPU time by the name of a part."""
EVICT_BYTES = 16 << 20
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def main(argv: Sequence[str]) -> None:
    """One table."""
    parser = options("first_token", __doc__)
    parser.add_argument("--requests", type=int, default=200, help="of each kind")
    parser.add_argument("--words", type=int, default=40, help="of a prompt")
    parser.add_argument("--model_path", default="", help="the child's, instead of the embedded one")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--logprobs", action="store_true", help="with five alternatives of each token")
    args = parser.parse_args(argv)
    report = Report("first_token", args)
    texts = [prompts(args.seed + kind, args.requests + 20, args.words, spread=0.2) for kind in range(2)]
    rows: list[list[Row]] = []
    with report.progress(2, "warm, evicted"):
        for kind, evict in enumerate((lambda: None, Evict())):
            front = uvloop.run(front_rows(texts[kind], evict))
            child = child_rows(texts[kind], evict, args)
            rows.append([a | b for a, b in zip(front, child, strict=True)][20:])
    for name in rows[0][0]:
        warm, evicted = (round(quantile([row[name] for row in kind], 0.5) * 1e6) for kind in rows)
        report.row(case=name, warm_us=warm, evicted_us=evicted)
    report.table("CPU time to the first token, medians", ("case", "warm_us", "evicted_us"))


class Evict:
    """Fills the caches of a core."""

    def __init__(self) -> None:
        self._data = np.zeros(EVICT_BYTES, np.uint8)

    def __call__(self) -> None:
        self._data[::64] += 1


async def front_rows(texts: list[str], evict: Callable[[], object]) -> list[Row]:
    """The front end's parts for each text."""
    front = path.Path("none")
    await front._model.load()
    peer, connection = front._connect(asyncio.get_running_loop())
    rows = []
    for text in texts:
        row: Row = {}
        request = front.payload(text)
        evict()
        began = time.thread_time()
        await front._ask(connection, request)
        row["front: bytes of a request to a frame"] = time.thread_time() - began
        number, peer.data = front._sent, b""
        token = protocol.Tokens(number, 0, path.WORD, None, None)
        for name, records in (
            ("front: acceptance to a response's head", [protocol.Accepted(number, 90)]),
            ("front: first token to an event", [protocol.Prefilled(number, 0, 1.0), token]),
        ):
            frame = protocol.encode(records)
            evict()
            writes, began = peer.writes, time.thread_time()
            front._engine._deliver(protocol.Decoder().feed(frame))
            while peer.writes == writes:  # noqa: ASYNC110 - what is timed is turns of the loop
                await asyncio.sleep(0)
            row[name] = time.thread_time() - began
        front._deliver([protocol.Tokens(number, 0, path.WORD, None, "length")])
        while not peer.data.endswith(b"0\r\n\r\n"):  # noqa: ASYNC110
            await asyncio.sleep(0)
        rows.append(row)
    return rows


class Pipe:
    """A transport without a socket."""

    def __init__(self) -> None:
        self.data = b""
        self._decoder = protocol.Decoder()

    def receive(self, wait: bool) -> list[protocol.Record]:
        """What was put there."""
        data, self.data = self.data, b""
        return self._decoder.feed(data)

    def send(self, records: list[protocol.Record]) -> None:
        """Encode, as for a socket."""
        protocol.encode(records)


def child_rows(texts: list[str], evict: Callable[[], object], args: argparse.Namespace) -> list[Row]:
    """The child's parts for each text, nested ones subtracted."""
    pipeline, pipe = PagedPipeline(Config(model_path=args.model_path) if args.model_path else Config()), Pipe()
    child = Worker(GenerationTask(pipeline, Config(max_queued_requests=64)), pipe)  # type: ignore[arg-type]
    task = child.task
    clock: Row = {}
    for owner, name, part in (
        (pipe, "receive", "child: frame read"),
        (pipeline, "encode", "child: tokenized"),
        (task.validator, "request", "child: checked"),
        (pipeline, "admit", "child: started"),
        (pipeline, "_schedule", "child: inputs of the step"),
        (pipeline._network, "infer", "child: network"),
        (pipeline, "compute", "child: sampled, appended"),
        (pipeline, "step", "child: records made"),
        (pipe, "send", "child: frames written"),
    ):
        timed(owner, name, part, clock)
    top = 5 if args.logprobs else 0
    fields = sampling_fields(
        SamplingParams(max_tokens=2, temperature=args.temperature, logprobs=args.logprobs, top_logprobs=top, seeds=(1,))
    )
    rows, numbers = [], itertools.count(1)
    for text in texts:
        number = next(numbers)
        submit = protocol.Submit(number, CHAT.format(text), False, None, False, fields, client="10.0.0.1", group=number)
        pipe.data = protocol.encode([submit])
        clock.clear()
        evict()
        began = time.thread_time()
        child.turn()
        total = time.thread_time() - began
        rows.append({**clock, "child: the rest of its loop": total - sum(clock.values())})
        while not task.idle:
            child.turn()
    return rows


_inner: list[float] = []


def timed(owner: Any, name: str, part: str, clock: Row) -> None:
    """Add the CPU time of owner.name to a part, without that of parts inside it."""
    whole = getattr(owner, name)

    def timing(*args: Any, **options: Any) -> Any:
        _inner.append(0.0)
        began = time.thread_time()
        try:
            return whole(*args, **options)
        finally:
            took = time.thread_time() - began
            clock[part] = clock.get(part, 0.0) + took - _inner.pop()
            if _inner:
                _inner[-1] += took

    setattr(owner, name, timing)
