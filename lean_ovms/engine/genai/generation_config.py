"""A request's GenerationConfig, the same for every pipeline of openvino_genai.

It is built here, field by field, from what checks.py has let through; nothing that a client sent reaches the binding
otherwise. stop_strings, num_beam_groups, tree_depth, adapters and the like are never set, and n is never more than 1:
GenAI does these wrongly, or dies of them.
"""

from __future__ import annotations

from typing import Any

import openvino_genai as genai

from ..generation.pipeline import PipelineRequest
from ..generation.validation import MAX_SEED
from .grammar_compiler import structured

GREEDY_BELOW = 1e-5
"""Temperatures that divide every logit to infinity mean greedy decoding (vLLM's limit too)."""


def build(request: PipelineRequest, eos: int, speculative: str) -> Any:
    """eos: the model's main end token, -1 for none. assisted: as in ModelInfo. Not validated."""
    asked = request.sampling
    config = genai.GenerationConfig()
    if eos >= 0:
        config.set_eos_token_id(eos)
    # A request's stop ids replace the model's list in GenAI; `stops` holds both.
    config.stop_token_ids = set(request.stops) | ({eos} if eos >= 0 else set())
    config.ignore_eos = asked.ignore_eos
    config.max_new_tokens = request.max_tokens
    config.min_new_tokens = request.min_tokens
    config.logprobs = 1 if asked.logprobs or request.echo else 0
    config.echo = request.echo
    if asked.beams > 1:
        config.num_beams = asked.beams
        config.num_return_sequences = asked.n
        config.length_penalty = asked.length_penalty
    else:
        _set_sampling(config, request)
    _set_assistant(config, request, speculative)
    if request.constraint:
        config.structured_output_config = structured(request.constraint)
    return config


def _set_sampling(config: Any, request: PipelineRequest) -> None:
    asked = request.sampling
    config.repetition_penalty = asked.repetition_penalty
    config.presence_penalty = asked.presence_penalty
    config.frequency_penalty = asked.frequency_penalty
    if asked.temperature <= GREEDY_BELOW:
        return
    config.do_sample = True
    config.rng_seed = (request.seed + request.done) & MAX_SEED
    config.temperature = asked.temperature
    config.top_p = asked.top_p
    config.min_p = asked.min_p
    if asked.top_k:
        config.top_k = asked.top_k


def _set_assistant(config: Any, request: PipelineRequest, speculative: str) -> None:
    """Every request of an assisted pipeline has these; without one they would hang the request."""
    asked = request.sampling
    if speculative == "draft" and asked.assistant_confidence_threshold:
        config.assistant_confidence_threshold = asked.assistant_confidence_threshold
    elif speculative:
        config.num_assistant_tokens = asked.num_assistant_tokens
    if speculative == "prompt_lookup":
        config.max_ngram_size = asked.max_ngram_size
