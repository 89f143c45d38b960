"""openvino_genai's LLMPipeline as a Pipeline: one text at a time, for devices without paged attention (NPU).

generate() blocks and releases the GIL, so it runs in a thread; its streamer keeps the tokens until `step` collects
them. Requests that are added while another one runs wait, first come, first served. A request is cancelled in the
streamer, that is, at the next token, so a prompt that is being computed is computed to its end.
"""

from __future__ import annotations

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from ....config import EngineConfig
from ....engine.loading.pipeline_choice import as_start_error, check_files
from ....engine.loading.settings import PipelineSettings
from ....errors import BadRequest, last_line, too_long
from ....manifest import GENAI_ADAPTERS
from ....repository.model_config import TEXT_MODEL
from .base import WARM_LENGTHS, GenAiPipeline
from .guard.pipeline import GuardedOutput, Handle, PipelineRequest, Status
from .settings import resolve_stateful

log = logging.getLogger(__name__)

STEP_S = 0.02
"""A step without a result returns after this, so that commands are handled while a long prompt is computed."""


@dataclass(slots=True, eq=False)
class StatefulHandle:
    """A request. The generating thread writes `new_…`, `finished` and `error` under the pipeline's lock."""

    request: PipelineRequest
    """The request."""
    config: Any
    """The GenerationConfig of the request."""
    outputs: deque[dict[int, GuardedOutput]] = field(default_factory=deque)
    """The outputs of steps that have not been read, the oldest first."""
    new_tokens: list[int] = field(default_factory=list)
    """The tokens since the last step."""
    new_audio: bytes = b""
    """The samples of the spoken answer since the last step."""
    num_received: int = 0
    """The number of all tokens so far."""
    cancelled: bool = False
    """Whether the request was cancelled, which the streamer finds out at the next token."""
    finished: bool = False
    """Whether nothing more is generated."""
    error: Exception | None = None
    """The error with which the generation ended; None for none."""
    prompt_tokens: int = 0
    """The exact number of prompt tokens of a finished request with images; 0 if it is not known."""

    def can_read(self) -> bool:
        return bool(self.outputs) and not self.cancelled

    def read(self) -> Mapping[int, GuardedOutput]:
        if not self.can_read():
            raise RuntimeError("read of an empty handle")
        return self.outputs.popleft()

    def cancel(self) -> None:
        self.cancelled = True


class Streamer(genai.StreamerBase):  # type: ignore[misc]  # the binding has no types
    """Receives the tokens of one generate(). It must not raise an error, after which the pipeline would be unusable."""

    def __init__(self, pipeline: StatefulPipeline, handle: StatefulHandle) -> None:
        super().__init__()
        self._pipeline = pipeline
        self._handle = handle

    def write(self, tokens: list[int]) -> Any:
        return self._pipeline.receive(self._handle, tokens)

    def end(self) -> None:
        pass


class StatefulPipeline(GenAiPipeline):
    """A Pipeline that uses openvino_genai.LLMPipeline, with its state in the device."""

    NETWORK = TEXT_MODEL

    def __init__(self, config: EngineConfig, settings: PipelineSettings | None = None) -> None:
        """Loads and warms up. Raises errors.StartError with the reason in one line."""
        settings = settings or resolve_stateful(config)
        check_files(config, self.NETWORK)
        with as_start_error(config):
            self._pipe = self._open(config, settings)
            self._tokenizer = self._pipe.get_tokenizer()
            defaults = self._pipe.get_generation_config()
            self._eos = int(defaults.eos_token_id)
            for length in (n for n in WARM_LENGTHS if n + 8 < settings.context):
                self._probe(length)
        self.describe(config, settings, settings.blocks, defaults)
        self.max_prompt_tokens = settings.max_prompt_tokens
        self.token_timeout_s = config.engine_watchdog_s
        self._live: list[StatefulHandle] = []  # added, and not yet removed by a step
        self._queue: deque[StatefulHandle] = deque()
        self._changed = threading.Condition()
        # Monotonic time; reset when a request arrives while idle, and when its computation begins.
        self._last_token_at = 0.0
        threading.Thread(target=self._serve, name="generate", daemon=True).start()

    def _open(self, config: EngineConfig, settings: PipelineSettings) -> Any:
        properties = {"ATTENTION_BACKEND": "SDPA", **settings.properties}
        if (adapters := config.part(GENAI_ADAPTERS)) is not None:
            properties["adapters"] = adapters(config)
        return genai.LLMPipeline(str(config.model_dir), settings.device, **properties)

    # --- pipeline.Pipeline

    def add(self, request: PipelineRequest) -> Handle:
        if not request.tokens:
            raise BadRequest("prompt is empty", param="prompt")
        self.check(request)
        handle = StatefulHandle(request, self._config(request))
        with self._changed:
            if not self._live:  # the last token may be long ago, and the thread may start late
                self._last_token_at = time.monotonic()
            self._live.append(handle)
            self._queue.append(handle)
            self._changed.notify_all()
        return handle

    def step(self) -> None:
        with self._changed:
            self._changed.wait_for(self._has_news, STEP_S)
            for handle in self._live:
                if handle.cancelled and handle in self._queue:
                    self._queue.remove(handle)
                    handle.finished = True
                elif handle.new_tokens or handle.new_audio:
                    handle.outputs.append({0: GuardedOutput(handle.new_tokens, audio=handle.new_audio)})
                    handle.new_tokens, handle.new_audio = [], b""
            done = [h for h in self._live if h.finished]
            self._live = [h for h in self._live if not h.finished]
        for handle in done:
            if handle.error is not None and not handle.cancelled:
                raise handle.error
        if self._live and time.monotonic() - self._last_token_at > self.token_timeout_s:
            self.recoverable = False
            raise TimeoutError(f"no token was generated for {self.token_timeout_s:g} s")

    def busy(self) -> bool:
        return bool(self._live)

    def scheduled(self) -> int:
        return min(1, len(self._live))

    def status(self, handle: Handle) -> Status:
        return "finished" if handle.finished else "running"  # type: ignore[attr-defined]  # every handle is ours

    # --- one request

    def check(self, request: PipelineRequest) -> None:
        sampling = request.sampling
        if sampling.beams > 1:
            raise BadRequest("beam search is not supported by this model's pipeline (LM)", param="best_of")
        if sampling.logprobs or request.echo:
            raise BadRequest("log probabilities are not supported by this model's pipeline (LM)", param="logprobs")
        if len(request.tokens) > self.max_prompt_tokens:
            text = (
                f"Number of prompt tokens: {len(request.tokens)} exceeds the device's limit: {self.max_prompt_tokens}"
            )
            raise too_long(f"{text} (--max_prompt_len)", self.max_prompt_tokens)
        super().check(request)

    def _has_news(self) -> bool:
        return any(
            h.finished or ((h.new_tokens or h.new_audio) and not h.cancelled) or (h.cancelled and h in self._queue)
            for h in self._live
        )

    # --- the thread that generates

    def receive(self, handle: StatefulHandle, tokens: list[int], audio: bytes = b"") -> Any:
        """Adds the streamer's new tokens or audio to a handle. Returns GenAI's status, which continues or cancels."""
        with self._changed:
            handle.new_tokens += tokens
            handle.new_audio += audio
            handle.num_received += len(tokens)
            self._last_token_at = time.monotonic()
            self._changed.notify_all()
        return genai.StreamingStatus.CANCEL if handle.cancelled else genai.StreamingStatus.RUNNING

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                handle = self._queue.popleft()
                self._last_token_at = time.monotonic()
            error = None if handle.cancelled else self._generate(handle)
            with self._changed:
                handle.error, handle.finished = error, True
                self._changed.notify_all()

    def _generate(self, handle: StatefulHandle) -> Exception | None:
        try:
            ids = self._compute(handle)
        except Exception as error:  # any error of the pipeline; step() raises it in the worker's thread
            self._repair(error)
            return error
        if not handle.cancelled:
            self.receive(handle, ids[handle.num_received :])
        return None

    def _compute(self, handle: StatefulHandle) -> list[int]:
        """Generates, and returns all generated ids, most of which the streamer has received before."""
        result = self._pipe.generate(_tensor(handle.request.tokens), handle.config, Streamer(self, handle))
        return list(result.tokens[0])

    def _repair(self, error: Exception) -> None:
        """Generates a token after an exception, so that the next request does not use the failed one's sampler."""
        log.warning("a request failed: %s", last_line(error))
        try:
            self._probe(1)
        except Exception as second:  # any error of the pipeline, as above
            log.error("the pipeline cannot recover: %s", last_line(second))
            self.recoverable = False

    def _probe(self, length: int) -> None:
        """Generates one token after a prompt of `length` tokens."""
        tokens = [(i + 1) % 32 for i in range(length)]
        self._pipe.generate(_tensor(tokens), self._short_config(1))


def _tensor(tokens: list[int]) -> Any:
    return ov.Tensor(np.array([tokens], dtype=np.int64))
