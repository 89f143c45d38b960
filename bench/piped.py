"""Measures the engine process without HTTP: an event loop with the parent's side of the pipe, and nothing else of the
server.

What it needs beyond the limit is the cost of the task, the pipe and waking up. What the server needs beyond this is
HTTP, JSON, templates and text.

python -m bench.piped [options of the server] reads one Work per line, and answers with its Outcome.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict

import uvloop

from bench.work import Outcome, Work
from lean_ovms.cli.arguments import parse
from lean_ovms.models.text_model import TextModel
from lean_ovms.types import ChatPrompt, SamplingParams
from lean_ovms.types.push import StreamIterator


class Parent:
    """Sends each Work to an engine client."""

    def __init__(self, argv: list[str]) -> None:
        self._model = TextModel(parse(argv, {}))

    async def serve(self) -> None:
        """Answers lines until the input ends."""
        await self._model.load()
        out = os.fdopen(os.dup(1), "w")
        print('{"ready": true}', file=out, flush=True)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            question = json.loads(line)
            ignore_eos = bool(question.pop("ignore_eos", False))
            outcome = await self._run(Work(**question), ignore_eos)
            print(json.dumps(asdict(outcome)), file=out, flush=True)
        await self._model.stop()

    async def _run(self, work: Work, ignore_eos: bool) -> Outcome:
        outcome = Outcome()
        texts = [await self._model.render(ChatPrompt([{"role": "user", "content": p}])) for p in work.prompts]
        sampling = SamplingParams(max_tokens=work.max_tokens, temperature=0.0, ignore_eos=ignore_eos)
        cpu, start = time.process_time(), time.perf_counter()
        if work.arrivals:
            pairs = zip(work.arrivals, texts, strict=True)
            await asyncio.gather(*(self._later(start + at, text, sampling, outcome) for at, text in pairs))
        else:
            left = iter(texts)
            await asyncio.gather(*(self._lane(left, sampling, outcome) for _ in range(work.concurrency)))
        outcome.wall_s, outcome.cpu_s = time.perf_counter() - start, time.process_time() - cpu
        return outcome

    async def _later(self, began: float, text: str, sampling: SamplingParams, outcome: Outcome) -> None:
        await asyncio.sleep(max(0.0, began - time.perf_counter()))
        await self._one(text, began, sampling, outcome)

    async def _lane(self, texts, sampling: SamplingParams, outcome: Outcome) -> None:
        for text in texts:
            await self._one(text, time.perf_counter(), sampling, outcome)

    async def _one(self, text: str, began: float, sampling: SamplingParams, outcome: Outcome) -> None:
        reply = await self._model.engine.submit(
            text, add_special_tokens=False, truncate=None, want_tokens=False, sampling=sampling
        )
        first = last = 0.0
        tokens = 0
        async for records in StreamIterator(reply):
            now = time.perf_counter()
            if tokens:
                outcome.gaps.append(now - last)
            else:
                first = now
            tokens += sum(len(record.tokens) for record in records)
            last = now
            outcome.events += 1
        reply.cancel()
        outcome.prompt_tokens += reply.prompt_tokens
        outcome.first.append(first - began)
        outcome.total.append(last - began)
        outcome.tokens.append(tokens)


if __name__ == "__main__":
    uvloop.run(Parent(sys.argv[1:]).serve())
