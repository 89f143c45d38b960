"""A pipeline that plays a script: for tests, for measuring the front end, and for --fake_engine. No openvino, no model.

It is as strict as the real one, on purpose: reading an empty handle raises, an exception out of a step poisons every
later step until all are cancelled and drained, running out of KV blocks loses everybody who runs, blocks of a cancelled
request are free only at the next step. tests/engine/test_pipeline_contract.py holds the two to the same promises.

The answer to a prompt is what the last <|user|> said (the whole prompt if nobody did), from a character that the seed
chooses, and then <eos>; byte_text has the language.
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

from ...config import Config
from ...errors import BadRequest, StartError
from ...types import ModelInfo
from . import fake_tokenizer as words
from .pipeline import Grammars, Handle, ImagePrompt, ImageTokenCounter, PipelineRequest, Status

NEVER_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How the pipeline behaves. For --fake_engine these are the keys of --plugin_config.

    step_s: what a step takes. answer: the text of every answer, instead of the prompt's own. tokens_per_step: as an
    assisted pipeline would. sleep: how time passes.
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


@dataclass(slots=True)
class FakeOutput:
    generated_ids: list[int]
    generated_log_probs: list[float]
    score: float = 0.0


@dataclass(slots=True, eq=False)
class FakeHandle:
    """One request; its answer is known from the start."""

    work: PipelineRequest
    answer: list[int]
    fed: int = 0  # prompt tokens computed
    told: int = 0  # answer tokens computed
    stalled: bool = False
    state: str = "running"  # finished, lost, cancelled
    outputs: deque[dict[int, FakeOutput]] = field(default_factory=deque)

    def can_read(self) -> bool:
        return bool(self.outputs) and self.state != "cancelled"

    def read(self) -> Mapping[int, FakeOutput]:
        if not self.can_read():
            raise RuntimeError("read of an empty handle: the real one blocks for ever")
        return self.outputs.popleft()

    def cancel(self) -> None:
        self.state = "cancelled"
        self.outputs.clear()

    @property
    def tokens(self) -> int:
        """Tokens in the KV cache, the next one included."""
        return self.fed + self.told + 1


class AnyGrammar:
    """A contract.Compiler and contract.Helper that find every grammar good; the script is played regardless."""

    def compile(self, tag: str) -> None:
        pass

    def forget(self) -> None:
        pass

    def check(self, tag: str) -> tuple[float, int]:
        return 0.0, 0

    def stop(self) -> None:
        pass


IMAGE_TOKENS = 16
_TAG = re.compile(r"<ov_genai_image_(\d+)>")


class FakeImageTokens:
    """A contract.Sight in whose text an image reads as its size and the colour of its first pixel: "[2x3 #ff0000]"."""

    def lay_out(self, scene: ImagePrompt) -> list[int]:
        return [-1] * (IMAGE_TOKENS * len(scene.images)) + words.encode(read_aloud(scene), scene.add_special_tokens)

    def counted(self, handle: Handle) -> int:
        assert isinstance(handle, FakeHandle)
        return len(handle.work.tokens) if handle.state == "finished" else 0

    def learn(self, scene: ImagePrompt, tokens: int) -> None:
        pass


def read_aloud(scene: ImagePrompt) -> str:
    """The text of a scene, with words for its images."""
    said = [f"[{i.width}x{i.height} #{i.pixels[:3].hex()}]" for i in scene.images]
    return _TAG.sub(lambda match: said[int(match[1])], scene.text)


class FakePipeline:
    """A contract.Pipeline without a model."""

    def __init__(self, script: Script | None = None) -> None:
        script = script or Script()
        self.script = script
        self.recoverable = script.recoverable
        self.step_tokens = script.step_tokens
        self.steps = 0
        self.live: list[FakeHandle] = []
        self.grammars: Grammars | None = Grammars(AnyGrammar(), AnyGrammar())
        self.sight: ImageTokenCounter | None = FakeImageTokens() if script.vision else None
        self._poisoned = False
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
    def from_config(cls, config: Config) -> FakePipeline:
        """For --fake_engine. Raises StartError."""
        script = Script(
            context=config.max_model_len or Script().context,
            step_tokens=config.max_num_batched_tokens,
            prefix_caching=config.enable_prefix_caching,
        )
        try:
            asked = json.loads(config.plugin_config or "{}")
            for name, value in asked.items():
                kind = type(getattr(script, name))
                if type(value) is not kind and not (kind is float and type(value) is int):
                    raise TypeError(f"{name} is not of type {kind.__name__}")
        except (ValueError, TypeError, AttributeError) as error:
            raise StartError(f"--plugin_config does not fit the fake engine: {error}") from None
        return cls(replace(script, **asked))

    # --- contract

    def check(self, work: PipelineRequest) -> None:
        if not work.tokens:
            raise BadRequest("prompt is empty")
        if work.max_tokens < 1:
            raise BadRequest("max_tokens must be positive")

    def add(self, work: PipelineRequest) -> FakeHandle:
        self.check(work)
        if self._poisoned and self.live:
            raise RuntimeError("added to a poisoned pipeline before it was drained")
        handle = FakeHandle(work, self._answer(work), stalled=words.STALL in work.tokens)
        self.live.append(handle)
        return handle

    def step(self) -> None:
        self.steps += 1
        self.live = [h for h in self.live if h.state == "running"]
        if self._poisoned and self.live:
            raise RuntimeError("step of a poisoned pipeline")
        self._poisoned = False
        if self.script.step_s and self.live:
            self.script.sleep(self.script.step_s)
        plan = self._schedule()
        self._scheduled = len(plan)
        for handle, tokens in plan:
            self._feed(handle, tokens)
        for handle, _ in plan:  # after everybody's computation, as the real one samples: an exception silences all
            if handle.state == "running" and handle.fed == len(handle.work.tokens):
                self._tell(handle)
        self.live = [h for h in self.live if h.state == "running"]

    def busy(self) -> bool:
        return bool(self.live)

    def scheduled(self) -> int:
        return self._scheduled

    def status(self, handle: Handle) -> Status:
        assert isinstance(handle, FakeHandle)
        return "lost" if handle.state == "lost" else "running" if handle.state == "running" else "finished"

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return words.encode(text, add_special_tokens)

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return words.decode(tokens, skip_special_tokens)

    # --- one step

    def _schedule(self) -> list[tuple[FakeHandle, int]]:
        """Who computes how many tokens: running answers first, then prompts in order, as far as the step reaches."""
        ready = [h for h in self.live if not h.stalled]
        answering = [(h, 1) for h in ready if h.fed == len(h.work.tokens)]
        left = self.step_tokens - len(answering)
        plan = answering[: self.step_tokens]
        for handle in ready:
            missing = len(handle.work.tokens) - handle.fed
            if missing and left > 0:
                plan.append((handle, min(missing, left)))
                left -= missing
        if self._blocks_needed(dict(plan)) > self.script.blocks:
            self._lose(self.live)
            return []
        return plan

    def _blocks_needed(self, plan: Mapping[FakeHandle, int]) -> int:
        size = self.script.block_size
        return sum(-(-(h.fed + h.told + plan.get(h, 0)) // size) for h in self.live)

    def _lose(self, handles: list[FakeHandle]) -> None:
        for handle in handles:
            handle.state = "lost"
            handle.outputs.append({})

    def _feed(self, handle: FakeHandle, tokens: int) -> None:
        prompt = len(handle.work.tokens)
        if handle.fed < prompt:
            handle.fed += tokens
            if handle.fed == prompt:
                self._play_tricks(handle)

    def _play_tricks(self, handle: FakeHandle) -> None:
        prompt = set(handle.work.tokens)
        if words.RAISE in prompt:
            self._poisoned = True
            raise RuntimeError("Exception from src/cpp/src/scripted.cpp:1:\n/somewhere/build/x.cpp:2\nscripted failure")
        if words.HANG in prompt:
            self.script.sleep(NEVER_S)
        if words.DIE in prompt:
            os._exit(9)
        if words.LOSE in prompt:
            self._lose([handle])

    def _tell(self, handle: FakeHandle) -> None:
        work = handle.work
        if work.sampling.beams > 1:
            self._tell_beams(handle)
            return
        echoed = work.tokens if work.echo and not handle.told else []
        tokens = handle.answer[handle.told : handle.told + self.script.tokens_per_step]
        handle.told += len(tokens)
        if handle.told == len(handle.answer):
            handle.state = "finished"
        handle.outputs.append({0: _output([*echoed, *tokens])})

    def _tell_beams(self, handle: FakeHandle) -> None:
        """All beams at once, worst first, under keys of no meaning; each lesser one begins a token later."""
        answer, outputs = handle.answer, {}
        for rank in reversed(range(handle.work.sampling.beams)):
            start = rank % max(1, len(answer) - 1)
            ids = answer[start:-1] + answer[:start] + answer[-1:]
            outputs[100 + rank] = _output(ids, -float(rank))
        handle.outputs.append(outputs)
        handle.state = "finished"

    def _answer(self, work: PipelineRequest) -> list[int]:
        """What depends on prompt and seed alone: the text over and over, up to a stop or max_tokens."""
        prompt = work.tokens[: len(work.tokens) - work.done]
        begin = max((i for i, t in enumerate(prompt) if t == words.USER), default=-1)
        said = bytes(t for t in prompt[begin + 1 :] if 0 <= t < 256).decode("utf-8", "replace") or "?"
        text = self.script.answer or said
        if work.sampling.temperature > 0 and work.sampling.beams == 1:
            start = random.Random(work.seed).randrange(len(text))
            text = text[start:] + text[:start]
        free = work.sampling.ignore_eos
        answer: list[int] = []
        for token in itertools.cycle([*text.encode(), words.EOS]):
            done = len(answer) - work.done
            if done == work.max_tokens:
                break
            may_end = not free and done + 1 >= work.min_tokens
            if token != words.EOS or may_end:
                answer.append(token)
            if may_end and done >= 0 and token in work.stops:
                break
        return answer[work.done :]


def _output(tokens: list[int], score: float = 0.0) -> FakeOutput:
    """Its log probabilities tell the token, so that a test sees which is whose; they are exact in binary."""
    return FakeOutput(tokens, [-(token + 1) / 1024 for token in tokens], score)
