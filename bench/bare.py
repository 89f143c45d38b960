"""The limit: the same prompts through openvino_genai's pipeline in a bare loop, in this process, with nothing around.

Text in (already rendered by the tokenizer's own chat template), token ids out: what no server can do without, and all
that it should cost. The pipeline is built, sized and warmed up by the server's own code, so that both have the same
one. python -m bench.bare [options of the server] answers Work.
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

from bench.processes import answering
from bench.work import Outcome, Work
from lean_ovms.cli.arguments import parse
from lean_ovms.config import Config
from lean_ovms.features.genai_pipelines.child.continuous import ContinuousPipeline


class Running:
    """One request."""

    __slots__ = ("began", "first", "handle", "ids", "last")

    def __init__(self, began: float) -> None:
        self.began = self.last = began
        self.first = 0.0
        self.ids: list[int] = []
        self.handle: Any = None


class Loop:
    """Adds requests, steps, reads."""

    def __init__(self, argv: list[str]) -> None:
        self._engine = self.load(parse(argv, {}))
        self._tokenizer = self.tokenizer(self._engine)
        self._stops = frozenset(self._engine.info.eos_token_ids)
        self._number = 1 << 40
        gc.collect()
        gc.freeze()

    @staticmethod
    def load(config: Config) -> Any:
        """The pipeline, warm."""
        return ContinuousPipeline(config)

    @staticmethod
    def tokenizer(engine: Any) -> genai.Tokenizer:
        """Returns the tokenizer of a pipeline."""
        return engine._tokenizer

    def begin(self, ids: np.ndarray, max_tokens: int, ignore_eos: bool) -> Any:
        """Add a request to the next steps: its handle."""
        config = genai.GenerationConfig()
        config.set_eos_token_id(self._engine._eos)
        config.stop_token_ids = set(self._stops)
        config.max_new_tokens = max_tokens
        config.ignore_eos = ignore_eos
        self._number += 1
        return self._engine._pipe.add_request(self._number, ov.Tensor(np.array([ids], dtype=np.int64)), config)

    def step(self) -> None:
        """One step of the engine."""
        self._engine.step()

    def answer(self, question: dict) -> dict:
        """One Work. With messages instead of prompts: one turn of a conversation, and its text."""
        ignore_eos = bool(question.pop("ignore_eos", False))
        messages = question.pop("messages", None)
        work = Work(**{"prompts": [], "concurrency": 1, **question})
        chats = [messages] if messages else [[{"role": "user", "content": prompt}] for prompt in work.prompts]
        texts = [self._tokenizer.apply_chat_template(chat, add_generation_prompt=True) for chat in chats]
        outcome, last = self._run(work, texts, ignore_eos)
        text = {"text": self._engine.decode(last, True)} if messages else {}
        return {**asdict(outcome), **text}

    def _run(self, work: Work, texts: list[str], ignore_eos: bool) -> tuple[Outcome, list[int]]:
        """The outcome, and the ids of the request that began last."""
        outcome, live, last = Outcome(), [], list[int]()
        sent, cpu, start = 0, time.process_time(), time.perf_counter()
        while sent < len(texts) or live:
            now = time.perf_counter()
            if work.seconds and sent >= work.concurrency and now - start > work.seconds:
                del texts[sent:]
            while sent < len(texts) and self._due(work, sent, len(live), now - start):
                began = start + work.arrivals[sent] if work.arrivals else time.perf_counter()
                live.append(self._add(texts[sent], began, work.max_tokens, ignore_eos, outcome))
                last = live[-1].ids
                sent += 1
            if not live:
                time.sleep(max(0.0, start + work.arrivals[sent] - now))
                continue
            self.step()
            live = self._read(live, outcome, work.max_tokens, frozenset() if ignore_eos else self._stops)
        outcome.wall_s, outcome.cpu_s = time.perf_counter() - start, time.process_time() - cpu
        return outcome, last

    @staticmethod
    def _due(work: Work, sent: int, live: int, elapsed_s: float) -> bool:
        return work.arrivals[sent] <= elapsed_s if work.arrivals else live < work.concurrency

    def _add(self, text: str, began: float, max_tokens: int, ignore_eos: bool, outcome: Outcome) -> Running:
        running = Running(began)
        ids = self._tokenizer.encode(text, add_special_tokens=False).input_ids.data.reshape(-1)
        running.handle = self.begin(ids, max_tokens, ignore_eos)
        outcome.prompt_tokens += len(ids)
        return running

    @staticmethod
    def _read(live: list[Running], outcome: Outcome, limit: int, stops: frozenset[int]) -> list[Running]:
        left = []
        for running in live:
            if not running.handle.can_read():
                left.append(running)
                continue
            ids = running.handle.read()[0].generated_ids
            now = time.perf_counter()
            if running.ids:
                outcome.gaps.append(now - running.last)
            else:
                running.first = now
            running.ids += ids
            running.last = now
            outcome.events += 1
            if len(running.ids) < limit and ids[-1] not in stops:
                left.append(running)
                continue
            outcome.first.append(running.first - running.began)
            outcome.total.append(now - running.began)
            outcome.tokens.append(len(running.ids))
        return left


if __name__ == "__main__":
    loop = Loop(sys.argv[1:])
    answering(loop.answer)
