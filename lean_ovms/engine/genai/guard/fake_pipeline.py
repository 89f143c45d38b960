"""A pipeline with scripted outputs: for tests, for measuring the front end, for --fake_engine. No openvino, no model.

It is as strict as the real one, on purpose: reading an empty handle raises, an exception from a step poisons every
later step until all requests are cancelled and drained, running out of KV blocks drops all running requests, blocks of
a cancelled request are free only at the next step. tests/engine/test_pipeline_contract.py runs on both.

The answer to a prompt is the last <|user|> message (the whole prompt if there is none), starting at a character that
the seed chooses, and then <eos>; fake_tokenizer has the vocabulary.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ....config import EngineConfig
from ....engine_types import ModelInfo
from ....errors import BadRequest, StartError
from ....types import IMAGE_TAG
from ...generation import fake_tokenizer as words
from ...generation import grammar_limits
from ...generation.grammar_limits import GrammarBounds
from ...generation.pipeline import GrammarCost, Grammars, ImagePrompt, LongTextEncoder
from .pipeline import GuardedOutput, Handle, ImageTokenCounter, PipelineRequest, Status

NEVER_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How the pipeline behaves. For --fake_engine these are the keys of --plugin_config.

    step_s: duration of a step. answer: the text of every answer, instead of the prompt's own. tokens_per_step: more
    than 1 as in a speculative pipeline. sleep: replaced in tests.
    """

    context: int = 8192
    blocks: int = 4096
    block_size: int = 32
    step_tokens: int = 256
    step_s: float = 0.0
    answer: str = ""
    tokens_per_step: int = 1
    speculative: str = ""
    prefix_caching: bool = False
    recoverable: bool = True
    vision: bool = False
    sleep: Callable[[float], None] = time.sleep


@dataclass(slots=True, eq=False)
class FakeHandle:
    """One request; its answer is known from the start."""

    request: PipelineRequest
    answer: list[int]
    prefilled: int = 0  # prompt tokens computed
    decoded: int = 0  # answer tokens computed
    stalled: bool = False
    state: Literal["running", "finished", "lost", "cancelled"] = "running"
    outputs: deque[dict[int, GuardedOutput]] = field(default_factory=deque)

    def can_read(self) -> bool:
        return bool(self.outputs) and self.state != "cancelled"

    def read(self) -> Mapping[int, GuardedOutput]:
        if not self.can_read():
            raise RuntimeError("read of an empty handle: the real one blocks for ever")
        return self.outputs.popleft()

    def cancel(self) -> None:
        self.state = "cancelled"
        self.outputs.clear()


class AnyGrammar:
    """A pipeline.Compiler and pipeline.GrammarChecker that accept every grammar; the outputs ignore it."""

    def compile(self, tag: str) -> None:
        pass

    def clear(self) -> None:
        pass

    def check(self, tag: str, bounds: GrammarBounds) -> GrammarCost:
        grammar_limits.check(tag, bounds)
        return GrammarCost(0.0, 0)

    def stop(self) -> None:
        pass


IMAGE_TOKENS = 16
_TAG = re.compile(IMAGE_TAG.format(r"(\d+)"))


class FakeImageTokens:
    """A pipeline.ImageTokenCounter. An image is the text of its size and its first pixel's colour: [2x3 #ff0000]."""

    takes_ids = False

    def placeholder_ids(self, image_prompt: ImagePrompt) -> list[int]:
        descriptions = [f"[{i.width}x{i.height} #{i.pixels[:3].hex()}]" for i in image_prompt.images]
        text = _TAG.sub(lambda match: descriptions[int(match[1])], image_prompt.text)
        text_ids = words.encode(text, image_prompt.add_special_tokens)
        return [-1] * (IMAGE_TOKENS * len(image_prompt.images)) + text_ids

    def prompt_tokens(self, handle: Handle) -> int:
        assert isinstance(handle, FakeHandle)
        return len(handle.request.tokens) if handle.state == "finished" else 0

    def learn(self, image_prompt: ImagePrompt, tokens: int) -> None:
        pass


class FakePipeline:
    """A pipeline.Pipeline without a model."""

    def __init__(self, script: Script | None = None) -> None:
        script = script or Script()
        self.script = script
        self.recoverable = script.recoverable
        self.step_tokens = script.step_tokens
        self.steps = 0
        self.live: list[FakeHandle] = []
        self.grammars: Grammars | None = Grammars(AnyGrammar(), AnyGrammar())
        self.image_token_counter: ImageTokenCounter | None = FakeImageTokens() if script.vision else None
        self.long_text_encoder: LongTextEncoder | None = None
        self.poisoned = False
        self._scheduled = 0
        self.vocabulary = words.vocabulary()
        self.info = ModelInfo(
            vocab_size=words.VOCAB_SIZE,
            context_length=script.context,
            kv_blocks=script.blocks,
            block_size=script.block_size,
            eos_token_ids=[words.EOS],
            bos_token=words.SPECIAL[1],
            eos_token=words.SPECIAL[0],
            chat_template=words.TEMPLATE,
            speculative=script.speculative,
            prefix_caching=script.prefix_caching,
            versions={"scripted": "1"},
            vision=script.vision,
        )

    @classmethod
    def from_config(cls, config: EngineConfig) -> FakePipeline:
        """For --fake_engine. Raises StartError."""
        script = Script(
            context=config.max_model_len or Script().context,
            step_tokens=config.max_num_batched_tokens,
            prefix_caching=config.enable_prefix_caching,
        )
        try:
            given = json.loads(config.plugin_config or "{}")
            for name, value in given.items():
                kind = type(getattr(script, name))
                if type(value) is not kind and not (kind is float and type(value) is int):
                    raise TypeError(f"{name} is not of type {kind.__name__}")
        except (ValueError, TypeError, AttributeError) as error:
            raise StartError(f"--plugin_config does not fit the fake engine: {error}") from None
        return cls(replace(script, **given))

    # --- pipeline.Pipeline

    def check(self, request: PipelineRequest) -> None:
        if not request.tokens:
            raise BadRequest("prompt is empty")
        if request.max_tokens < 1:
            raise BadRequest("max_tokens must be positive")

    def add(self, request: PipelineRequest) -> FakeHandle:
        self.check(request)
        if self.poisoned and self.live:
            raise RuntimeError("added to a poisoned pipeline before it was drained")
        handle = FakeHandle(request, self._answer(request), stalled=words.STALL in request.tokens)
        self.live.append(handle)
        return handle

    def step(self) -> None:
        self.steps += 1
        self.live = [h for h in self.live if h.state == "running"]
        if self.poisoned and self.live:
            raise RuntimeError("step of a poisoned pipeline")
        self.poisoned = False
        if self.script.step_s and self.live:
            self.script.sleep(self.script.step_s)
        plan = self._schedule()
        self._scheduled = len(plan)
        for handle, tokens in plan:
            self._prefill(handle, tokens)
        for handle, _ in plan:  # after all were computed, as the real one samples: an exception leaves no output
            if handle.state == "running" and handle.prefilled == len(handle.request.tokens):
                self.sample(handle)
        self.live = [h for h in self.live if h.state == "running"]

    def busy(self) -> bool:
        return bool(self.live)

    def scheduled(self) -> int:
        return self._scheduled

    def status(self, handle: Handle) -> Status:
        assert isinstance(handle, FakeHandle)
        return handle.state if handle.state in ("lost", "running") else "finished"

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return words.encode(text, add_special_tokens)

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return words.decode(tokens, skip_special_tokens)

    # --- one step

    def _schedule(self) -> list[tuple[FakeHandle, int]]:
        """Returns how many tokens each request computes: decode first, then prompts in order, up to step_tokens."""
        ready = [h for h in self.live if not h.stalled]
        decoding = [(h, 1) for h in ready if h.prefilled == len(h.request.tokens)]
        left = self.step_tokens - len(decoding)
        plan = decoding[: self.step_tokens]
        for handle in ready:
            missing = len(handle.request.tokens) - handle.prefilled
            if missing and left > 0:
                plan.append((handle, min(missing, left)))
                left -= missing
        if self.count_blocks(dict(plan)) > self.script.blocks:
            self._drop(self.live)
            return []
        return plan

    def count_blocks(self, plan: Mapping[FakeHandle, int]) -> int:
        """Returns the KV blocks of all requests after a step of this plan, cancelled ones included."""
        size = self.script.block_size
        return sum(-(-(h.prefilled + h.decoded + plan.get(h, 0)) // size) for h in self.live)

    def _drop(self, handles: list[FakeHandle]) -> None:
        for handle in handles:
            handle.state = "lost"
            handle.outputs.append({})

    def _prefill(self, handle: FakeHandle, tokens: int) -> None:
        prompt = len(handle.request.tokens)
        if handle.prefilled < prompt:
            handle.prefilled += tokens
            if handle.prefilled == prompt:
                self._apply_tricks(handle)

    def _apply_tricks(self, handle: FakeHandle) -> None:
        prompt = set(handle.request.tokens)
        if words.RAISE in prompt:
            self.poisoned = True
            raise RuntimeError("Exception from src/cpp/src/scripted.cpp:1:\n/somewhere/build/x.cpp:2\nscripted failure")
        if words.HANG in prompt:
            self.script.sleep(NEVER_S)
        if words.DIE in prompt:
            os._exit(9)
        if words.LOSE in prompt:
            self._drop([handle])

    def sample(self, handle: FakeHandle) -> None:
        request = handle.request
        if request.sampling.beams > 1:
            self._sample_beams(handle)
            return
        echoed = request.tokens if request.echo and not handle.decoded else []
        tokens = handle.answer[handle.decoded : handle.decoded + self.script.tokens_per_step]
        handle.decoded += len(tokens)
        if handle.decoded == len(handle.answer):
            handle.state = "finished"
        handle.outputs.append({0: _output([*echoed, *tokens])})

    def _sample_beams(self, handle: FakeHandle) -> None:
        """Appends all beams at once, worst first, under arbitrary keys; each worse one starts a token later."""
        answer, outputs = handle.answer, {}
        for rank in reversed(range(handle.request.sampling.beams)):
            start = rank % max(1, len(answer) - 1)
            outputs[100 + rank] = _output(answer[start:-1] + answer[:start] + answer[-1:], -float(rank))
        handle.outputs.append(outputs)
        handle.state = "finished"

    def _answer(self, request: PipelineRequest) -> list[int]:
        """Returns what follows from prompt and seed alone: the text over and over, up to a stop or max_tokens."""
        prompt = request.tokens[: len(request.tokens) - request.done]
        start = max((i for i, t in enumerate(prompt) if t == words.USER), default=-1)
        message = bytes(t for t in prompt[start + 1 :] if 0 <= t < 256).decode("utf-8", "replace") or "?"
        text = self.script.answer or message
        if request.sampling.temperature > 0 and request.sampling.beams == 1:
            start = random.Random(request.seed).randrange(len(text))
            text = text[start:] + text[:start]
        free = request.sampling.ignore_eos
        answer: list[int] = []
        for token in itertools.cycle([*text.encode(), words.EOS]):
            done = len(answer) - request.done
            if done == request.max_tokens:
                break
            may_end = not free and done + 1 >= request.min_tokens
            if token != words.EOS or may_end:
                answer.append(token)
            if may_end and done >= 0 and token in request.stops:
                break
        return answer[request.done :]


def _output(tokens: list[int], score: float = 0.0) -> GuardedOutput:
    return GuardedOutput(tokens, [logprob(token) for token in tokens], score)


def logprob(token: int) -> float:
    """Encodes the token, so that a test can match them; exact in binary."""
    return -(token + 1) / 1024
