"""openvino_genai's continuous batching as a Pipeline."""

from __future__ import annotations

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from ....config import EngineConfig
from ....engine.generation.backend import ASSISTANT_TOKENS, NGRAM_SIZE
from ....engine.generation.request_validator import GREEDY_BELOW
from ....engine.loading.pipeline_choice import as_start_error, check_files
from ....engine.loading.settings import NO_LIMIT, TOKENIZER_PROPERTIES, PipelineSettings, free_memory_bytes, resolve
from ....errors import BadRequest, last_line
from ....manifest import GENAI_ADAPTERS
from ....repository.model_config import TEXT_MODEL, is_head
from ....types import SamplingParams
from .base import WARM_LENGTHS, GenAiPipeline
from .guard.pipeline import Handle, PipelineRequest, Status
from .scheduler_config import draft_blocks, draft_scheduler, eviction_errors, scheduler

log = logging.getLogger(__name__)

PROBE_TOKENS = 33
"""A prompt that takes two blocks of 32, or three of 16: enough to measure the cache with."""


class ContinuousPipeline(GenAiPipeline):
    """A Pipeline that uses openvino_genai.ContinuousBatchingPipeline."""

    NETWORK = TEXT_MODEL

    def __init__(self, config: EngineConfig, settings: PipelineSettings | None = None) -> None:
        """Loads and warms up. Raises errors.StartError with the reason in one line."""
        settings = settings or resolve(config, free_memory_bytes())
        check_files(config, self.NETWORK)
        self._alone = settings.speculative == "draft" and is_head(_draft_dir(settings), "dflash")
        if self._alone:
            log.warning(
                "with a DFlash draft model, requests are computed greedily and one at a time, without the prefix cache"
            )
        with as_start_error(config), eviction_errors(config):
            self._pipe = _build(config, settings)
            self._tokenizer = self._pipe.get_tokenizer()
            defaults = self._pipe.get_config()
            self._eos = int(defaults.eos_token_id)
            self._next_id = 0
            self._speculative = settings.speculative
            blocks = self._measure(settings)
            blocks = min(blocks, draft_blocks(config, settings) or blocks)
            self._warm_up(settings)
        self.recoverable = settings.speculative != "draft"
        self.describe(config, settings, blocks, defaults)
        if self._alone:
            self.info = replace(self.info, max_sequences=1)

    def check(self, request: PipelineRequest) -> None:
        if self._alone and request.sampling.temperature > GREEDY_BELOW:
            raise BadRequest("temperature must be 0 with a DFlash draft model", param="temperature")
        super().check(request)

    def add(self, request: PipelineRequest) -> Handle:
        self._next_id += 1  # two running requests with the same id break the pipeline
        tokens = ov.Tensor(np.array([request.tokens], dtype=np.int64))
        try:
            if self._alone and self.busy():
                self.step()  # frees what cancelled requests hold
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

    def _run(self, prompts: list[list[int]], max_tokens: int) -> None:
        """Generates for prompts and drops the outputs. It is called only while the model is loaded."""
        sampling = SamplingParams(
            temperature=0.0,
            num_assistant_tokens=ASSISTANT_TOKENS if self._speculative else 0,
            max_ngram_size=NGRAM_SIZE if self._speculative == "prompt_lookup" else 0,
        )
        handles = []
        for tokens in prompts:
            handles.append(self.add(PipelineRequest(tokens=tokens, sampling=sampling, max_tokens=max_tokens)))
        while self._pipe.has_non_finished_requests():
            self._pipe.step()

    def _measure(self, settings: PipelineSettings) -> int:
        """Returns the number of blocks in the KV cache, measured by the share that a known number of them fills."""
        self._run([[i % 32 for i in range(PROBE_TOKENS)]], 1)
        share = self._pipe.get_metrics().cache_usage / 100
        used = -(-PROBE_TOKENS // settings.block_size)
        measured = round(used / share) if share > 0 else 0
        if settings.blocks and measured and measured < settings.blocks:
            log.warning("the KV cache has only %d blocks instead of %d", measured, settings.blocks)
        return min(n for n in (settings.blocks, measured, NO_LIMIT) if n)

    def _warm_up(self, settings: PipelineSettings) -> None:
        for prompts in _warm_up_prompts(min(settings.context, settings.step_tokens) - 8):
            self._run(prompts[:1] if self._alone else prompts, 4)


def _warm_up_prompts(most: int) -> list[list[list[int]]]:
    """Returns batches of prompts, each of at most `most` tokens, to be computed while loading.

    The first prompts of a length and the first batches of a size take several times as long as later ones. The ids
    exist in every vocabulary, and no prompt begins like another, so that the prefix cache has no effect.
    """
    lengths = [[length] for length in WARM_LENGTHS if length <= most]
    first = iter(range(1, 32))
    return [
        [[(seed + i) % 32 for i in range(n)] for n, seed in zip(batch, first, strict=False)]
        for batch in [*lengths, [8] * 4]
    ]


def _build(config: EngineConfig, settings: PipelineSettings) -> Any:
    scheduling = scheduler(config, settings)
    properties = dict(settings.properties)
    if settings.speculative == "prompt_lookup":
        properties["prompt_lookup"] = True
    if (adapters := config.part(GENAI_ADAPTERS)) is not None:
        properties["adapters"] = adapters(config)
    if settings.speculative == "draft":
        properties["draft_model"] = _draft(config, settings)
    return genai.ContinuousBatchingPipeline(
        str(config.model_dir), scheduling, settings.device, properties, TOKENIZER_PROPERTIES
    )


def _draft(config: EngineConfig, settings: PipelineSettings) -> Any:
    properties = dict(settings.properties)
    if settings.drafts.eagle3:
        properties["eagle3_mode"] = True
    device = settings.drafts.device or settings.device
    scheduling = draft_scheduler(config, settings)
    return genai.draft_model(str(_draft_dir(settings)), device, scheduler_config=scheduling, **properties)


def _draft_dir(settings: PipelineSettings) -> Path:
    """Returns the directory of the draft model, which must be set."""
    assert settings.drafts.model is not None
    return settings.drafts.model
