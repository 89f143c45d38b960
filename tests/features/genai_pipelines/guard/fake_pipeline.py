"""A pipeline with scripted outputs that stands for openvino_genai's, for tests of its guard. Needs neither openvino nor
a model.

It is deliberately as strict as the real one. Reading an empty handle raises an error. An exception in a step makes all
later steps fail until all requests are cancelled and drained. A beam search that is preempted for lack of KV blocks is
lost. Blocks of a cancelled request are free only at the next step. test_pipeline_contract.py runs on both.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from lean_ovms.engine.generation import fake_tokenizer as words
from lean_ovms.engine.generation import image_prompts
from lean_ovms.engine.generation.backend import Grammars, LongTextEncoder
from lean_ovms.engine.generation.image_prompts import ImagePrompt
from lean_ovms.errors import BadRequest
from lean_ovms.features.genai_pipelines.child.guard.pipeline import (
    GuardedOutput,
    Handle,
    ImageTokenCounter,
    PipelineRequest,
    Status,
)
from lean_ovms.features.scripted_engine.child import script as scripted
from lean_ovms.features.scripted_engine.child.backend import AnyGrammar
from lean_ovms.features.scripted_engine.child.script import answer, model_info
from lean_ovms.types import IMAGE_TAG

LOSE, STALL = 250, 251
"""Tokens of a prompt for which the pipeline drops the request, as if KV blocks ran out, or never schedules it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script(scripted.Script):
    """The behaviour of the pipeline, whose steps take no time. A speculative pipeline has more than 1
    `tokens_per_step`."""

    tokens_per_step: int = 1
    vision: bool = False


@dataclass(slots=True, eq=False)
class FakeHandle:
    """A request, whose answer is known from the start."""

    request: PipelineRequest
    answer: list[int]
    prefilled: int = 0  # the number of computed prompt tokens
    decoded: int = 0  # the number of computed answer tokens
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


IMAGE_TOKENS = 16
_TAG = re.compile(IMAGE_TAG.format(r"(\d+)"))


class FakeImageTokens:
    """A pipeline.ImageTokenCounter. An image becomes a text with its size and the colour of its first pixel: [2x3
    #ff0000]."""

    takes_ids = False
    parse = staticmethod(image_prompts.parse)

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
        self.grammars: Grammars = AnyGrammar()
        self.image_token_counter: ImageTokenCounter | None = FakeImageTokens() if script.vision else None
        self.long_text_encoder: LongTextEncoder | None = None
        self.poisoned = False
        self._scheduled = 0
        self.vocabulary = words.vocabulary()
        self.info = replace(model_info(script), vision=script.vision)

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
        handle = FakeHandle(request, self._answer(request), stalled=STALL in request.tokens)
        self.live.append(handle)
        return handle

    def step(self) -> None:
        self.steps += 1
        self.live = [h for h in self.live if h.state == "running"]
        if self.poisoned and self.live:
            raise RuntimeError("step of a poisoned pipeline")
        self.poisoned = False
        plan = self._schedule()
        self._scheduled = len(plan)
        for handle, tokens in plan:
            self._prefill(handle, tokens)
        for handle, _ in plan:  # only after all were computed, like the real one: a failing step has no output
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
        """Returns how many tokens of each request are computed. If KV blocks run out, the newest requests are
        preempted: they lose their blocks, and continue when some are free."""
        ready = [h for h in self.live if not h.stalled]
        while self.count_blocks(plan := self._plan(ready), ready) > self.script.blocks:
            victim = ready.pop()
            if not ready:
                self._drop(self.live)
            elif victim.request.sampling.beams > 1:
                self._drop([victim])
        return list(plan.items())

    def _plan(self, ready: list[FakeHandle]) -> dict[FakeHandle, int]:
        """Returns the tokens of each request in a step: first decoding ones, then prompts in order, up to
        step_tokens."""
        decoding = [(h, 1) for h in ready if h.prefilled == len(h.request.tokens)]
        left = self.step_tokens - len(decoding)
        plan = dict(decoding[: self.step_tokens])
        for handle in ready:
            missing = len(handle.request.tokens) - handle.prefilled
            if missing and left > 0:
                plan[handle] = min(missing, left)
                left -= missing
        return plan

    def count_blocks(self, plan: Mapping[FakeHandle, int], held: list[FakeHandle]) -> int:
        """Returns the number of KV blocks that these requests have after a step of this plan."""
        size = self.script.block_size
        return sum(-(-(h.prefilled + h.decoded + plan.get(h, 0)) // size) for h in held)

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
        if LOSE in prompt:
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
        """Appends all beams at once, the worst first, under arbitrary keys. Each worse beam starts one token later."""
        answer, outputs = handle.answer, {}
        for rank in reversed(range(handle.request.sampling.beams)):
            start = rank % max(1, len(answer) - 1)
            outputs[100 + rank] = _output(answer[start:-1] + answer[:start] + answer[-1:], -float(rank))
        handle.outputs.append(outputs)
        handle.state = "finished"

    def _answer(self, request: PipelineRequest) -> list[int]:
        """Returns an answer that depends only on prompt and seed."""
        return answer(
            self.script.answer,
            request.tokens,
            request.sampling,
            seed=request.seed,
            stops=request.stops,
            min_tokens=request.min_tokens,
            max_tokens=request.max_tokens,
        )


def _output(tokens: list[int], score: float = 0.0) -> GuardedOutput:
    return GuardedOutput(tokens, [logprob(token) for token in tokens], score)


def logprob(token: int) -> float:
    """Returns a log probability that encodes the token, exact in binary, so that tests can check it."""
    return -(token + 1) / 1024
