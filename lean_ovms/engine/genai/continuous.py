"""openvino_genai's continuous batching behind the contract."""

from __future__ import annotations

from . import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
import logging
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from ...config import Config
from ...errors import BadRequest
from ...types import SamplingParams
from ..errors import last_line
from ..generation.pipeline import ASSISTANT_TOKENS, NGRAM_SIZE, Handle, ImageTokenCounter, PipelineRequest, Status
from . import generation_config, model_info, vocabulary
from .load_errors import TEXT_MODEL, explained, is_gguf, look_for_files
from .lora import adapters
from .scheduler_config import draft_scheduler, scheduler
from .settings import NO_LIMIT, Plan, free_memory_bytes, make

log = logging.getLogger(__name__)

PROBE_TOKENS = 33
"""A prompt that takes two blocks of 32, or three of 16: enough to measure the cache with."""
WARM_LENGTHS = (8, 40, 250)


TOKENIZER = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False}
"""Tokenizing has nothing to share out: with more threads it costs twice the CPU time, and where another process has one
of two cores it waits for it (a prompt of 100 tokens: median 4.3 ms against 0.45, quiet 0.27 against 0.25; 2026-11)."""


class ContinuousPipeline:
    """A contract.Pipeline on openvino_genai.ContinuousBatchingPipeline."""

    NETWORK = TEXT_MODEL

    def __init__(self, config: Config, plan: Plan | None = None) -> None:
        """Load and warm up. Raises errors.StartError with one line that tells what is wrong."""
        plan = plan or make(config, free_memory_bytes())
        look_for_files(config, self.NETWORK)
        with explained(config):
            self._pipe = _build(config, plan)
            self._tokenizer = self._pipe.get_tokenizer()
            self._encode = model_info.encode_cut if is_gguf(config.model_dir) else model_info.encode
            defaults = self._pipe.get_config()
            self._eos = int(defaults.eos_token_id)
            self._next_id = 0
            self._speculative = plan.speculative
            blocks = self._measure(plan)
            self._warm_up(plan)
        self.recoverable = plan.speculative != "draft"
        self.step_tokens = plan.step_tokens
        self.info = model_info.describe(config, plan, blocks, self._tokenizer, defaults)
        self.vocabulary = vocabulary.build(config.model_dir, self._tokenizer)
        self.grammars = model_info.grammars(config, self._tokenizer)
        self.image_token_counter: ImageTokenCounter | None = None

    # --- contract

    def check(self, request: PipelineRequest) -> None:
        try:
            self._config(request).validate()
        except (RuntimeError, TypeError, ValueError) as error:
            raise BadRequest(last_line(error)) from error

    def add(self, request: PipelineRequest) -> Handle:
        self._next_id += 1  # two live requests with one id poison the pipeline
        tokens = ov.Tensor(np.array([request.tokens], dtype=np.int64))
        try:
            handle: Handle = self._pipe.add_request(self._next_id, tokens, self._config(request))
        except (RuntimeError, TypeError, ValueError) as error:
            raise BadRequest(last_line(error)) from error
        return handle

    def step(self) -> None:
        self._pipe.step()

    def busy(self) -> bool:
        return bool(self._pipe.has_non_finished_requests())

    def scheduled(self) -> int:
        return int(self._pipe.get_metrics().scheduled_requests)

    def status(self, handle: Handle) -> Status:
        status = handle.get_status()  # type: ignore[attr-defined]  # every handle here is the binding's own
        if status == genai.GenerationStatus.RUNNING:
            return "running"
        return "lost" if status == genai.GenerationStatus.IGNORED else "finished"

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._encode(self._tokenizer, text, add_special_tokens)

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return model_info.decode(self._tokenizer, tokens, skip_special_tokens)

    def _config(self, request: PipelineRequest) -> Any:
        if request.native is None:
            request.native = generation_config.build(request, self._eos, self._speculative)
        return request.native

    # --- loading

    def _run(self, prompts: list[list[int]], max_tokens: int) -> None:
        """Generate and forget; only while loading."""
        asked = SamplingParams(
            temperature=0.0,
            num_assistant_tokens=ASSISTANT_TOKENS if self._speculative else 0,
            max_ngram_size=NGRAM_SIZE if self._speculative == "prompt_lookup" else 0,
        )
        handles = []
        for tokens in prompts:
            request = PipelineRequest(
                tokens=tokens, sampling=asked, max_tokens=max_tokens, min_tokens=0, seed=0, stops=frozenset()
            )
            handles.append(self.add(request))
        while self._pipe.has_non_finished_requests():
            self._pipe.step()

    def _measure(self, plan: Plan) -> int:
        """KV blocks of the cache, from the share of it that a known number of blocks takes."""
        self._run([_prompt(PROBE_TOKENS, 0)], 1)
        share = self._pipe.get_metrics().cache_usage / 100
        used = -(-PROBE_TOKENS // plan.block_size)
        measured = round(used / share) if share > 0 else 0
        if plan.blocks and measured and measured < plan.blocks:
            log.warning("the KV cache has %d blocks instead of %d", measured, plan.blocks)
        return min(n for n in (plan.blocks, measured, plan.draft_blocks, NO_LIMIT) if n)

    def _warm_up(self, plan: Plan) -> None:
        """First prompts of a length and first batch sizes cost several times as much as later ones."""
        lengths = [n for n in WARM_LENGTHS if n + 8 <= min(plan.context, plan.step_tokens)]
        for seed, length in enumerate(lengths, 1):
            self._run([_prompt(length, seed)], 4)
        self._run([_prompt(8, seed) for seed in range(10, 14)], 4)


def _prompt(length: int, seed: int) -> list[int]:
    """Some ids that every vocabulary has, different from the first on for every seed."""
    return [(seed + i) % 32 for i in range(length)]


def _build(config: Config, plan: Plan) -> Any:
    scheduling = scheduler(config, plan)
    properties = dict(plan.properties)
    if plan.speculative == "prompt_lookup":
        properties["prompt_lookup"] = True
    if config.lora_modules:
        properties["adapters"] = adapters(config)
    if plan.speculative == "draft":
        properties["draft_model"] = _draft(config, plan)
    return genai.ContinuousBatchingPipeline(str(config.model_dir), scheduling, plan.device, properties, TOKENIZER)


def _draft(config: Config, plan: Plan) -> Any:
    properties = dict(plan.properties)
    if config.draft_eagle3_mode:
        properties["eagle3_mode"] = True
    device = config.draft_device or plan.device
    scheduling = draft_scheduler(config, plan)
    return genai.draft_model(config.draft_model_path, device, scheduler_config=scheduling, **properties)
