"""The limit for servers: the same prompts in a bare loop in this process, with openvino_genai's pipeline or the paged
engine.

A bare loop turns text, already rendered with the chat template, into token ids. No server can do without this work, and
it should not add much to it. The server's own code builds, sizes and warms up the engine, so both have the same one.

python -m bench.bare genai|paged [options of the server] reads one Work per line, and answers with its Outcome.
"""

from __future__ import annotations

import gc
import sys
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from bench.direct import Requests
from bench.processes import answering
from bench.work import Outcome, Work
from lean_ovms.cli.arguments import parse
from lean_ovms.config import Config
from lean_ovms.engine.paged import assemble
from lean_ovms.features.genai_pipelines.child.continuous import ContinuousPipeline
from lean_ovms.types import SamplingParams


class GenAi:
    """Runs openvino_genai's pipeline."""

    def __init__(self, config: Config) -> None:
        self._engine = ContinuousPipeline(config)
        self.tokenizer = self._engine._tokenizer
        self.stops = frozenset(self._engine.info.eos_token_ids)
        self.step = self._engine.step
        self._number = 1 << 40

    def begin(self, ids: np.ndarray, max_tokens: int, ignore_eos: bool) -> Any:
        """Adds a request, which the next steps will compute. Returns its handle."""
        config = genai.GenerationConfig()
        config.set_eos_token_id(self._engine._eos)
        config.stop_token_ids = set(self.stops)
        config.max_new_tokens = max_tokens
        config.ignore_eos = ignore_eos
        self._number += 1
        return self._engine._pipe.add_request(self._number, ov.Tensor(np.array([ids], dtype=np.int64)), config)

    @staticmethod
    def read(handle: Any) -> list[int]:
        """Returns the new tokens of a request."""
        return handle.read()[0].generated_ids if handle.can_read() else []


class Paged:
    """Runs the paged engine."""

    def __init__(self, config: Config) -> None:
        engine = assemble.load(config.replace(pipeline_type="PAGED"))
        self.tokenizer = engine._tokenizer.native  # openvino_genai's, as the model is a directory
        self.stops = frozenset(engine.info.eos_token_ids)
        self._requests = Requests(engine)
        self.step = self._requests.step

    def begin(self, ids: np.ndarray, max_tokens: int, ignore_eos: bool) -> list[int]:
        """Adds a request, which the next steps will compute. Returns the list that receives its tokens."""
        stops = frozenset() if ignore_eos else self.stops
        return self._requests.add(
            ids.tolist(), SamplingParams(temperature=0.0, ignore_eos=ignore_eos), max_tokens, stops
        )

    @staticmethod
    def read(handle: list[int]) -> list[int]:
        """Returns the new tokens of a request, and removes them from its list."""
        new, handle[:] = handle[:], []
        return new


class Running:
    """A request that is being computed."""

    __slots__ = ("began", "count", "first", "handle", "last")

    def __init__(self, began: float, handle: Any) -> None:
        self.began = began
        self.first = self.last = 0.0
        self.count = 0
        self.handle = handle


class Loop:
    """Adds requests, runs steps and reads tokens."""

    def __init__(self, engine: GenAi | Paged) -> None:
        self._engine: Any = engine
        gc.collect()
        gc.freeze()

    def answer(self, question: dict) -> dict:
        """Performs one Work, and returns its Outcome. The field `ignore_eos` is not part of the Work."""
        ignore_eos = bool(question.pop("ignore_eos", False))
        work = Work(**question)
        chats = [[{"role": "user", "content": prompt}] for prompt in work.prompts]
        texts = [self._engine.tokenizer.apply_chat_template(chat, add_generation_prompt=True) for chat in chats]
        return asdict(self._run(work, texts, ignore_eos))

    def _run(self, work: Work, texts: list[str], ignore_eos: bool) -> Outcome:
        outcome, live = Outcome(), list[Running]()
        stops = frozenset[int]() if ignore_eos else self._engine.stops
        sent, cpu, start = 0, time.process_time(), time.perf_counter()
        while sent < len(texts) or live:
            now = time.perf_counter()
            if work.seconds and sent >= work.concurrency and now - start > work.seconds:
                del texts[sent:]
            while sent < len(texts) and self._due(work, sent, len(live), now - start):
                began = start + work.arrivals[sent] if work.arrivals else time.perf_counter()
                ids = self._engine.tokenizer.encode(texts[sent], add_special_tokens=False).input_ids.data.reshape(-1)
                live.append(Running(began, self._engine.begin(ids, work.max_tokens, ignore_eos)))
                outcome.prompt_tokens += len(ids)
                sent += 1
            if not live:
                time.sleep(max(0.0, start + work.arrivals[sent] - now))
                continue
            self._engine.step()
            live = [running for running in live if not self._ended(running, outcome, work.max_tokens, stops)]
        outcome.wall_s, outcome.cpu_s = time.perf_counter() - start, time.process_time() - cpu
        return outcome

    @staticmethod
    def _due(work: Work, sent: int, live: int, elapsed_s: float) -> bool:
        return work.arrivals[sent] <= elapsed_s if work.arrivals else live < work.concurrency

    def _ended(self, running: Running, outcome: Outcome, limit: int, stops: frozenset[int]) -> bool:
        ids = self._engine.read(running.handle)
        if not ids:
            return False
        now = time.perf_counter()
        if running.count:
            outcome.gaps.append(now - running.last)
        else:
            running.first = now
        running.count += len(ids)
        running.last = now
        outcome.events += 1
        if running.count < limit and ids[-1] not in stops:
            return False
        outcome.first.append(running.first - running.began)
        outcome.total.append(now - running.began)
        outcome.tokens.append(running.count)
        return True


if __name__ == "__main__":
    engine = {"genai": GenAi, "paged": Paged}[sys.argv[1]]
    answering(Loop(engine(parse(sys.argv[2:], {}))).answer)
