"""A request's GenerationConfig, the same for every pipeline of openvino_genai.

It is built here, field by field, from values that the front end has checked; nothing else that a client sent reaches
the binding. stop_strings, num_beam_groups, tree_depth, adapters and the like are never set, and n is never more than 1:
GenAI handles these wrongly, or crashes.
"""

from __future__ import annotations

from typing import Any

import openvino_genai as genai

from ..generation.validation import GREEDY_BELOW, MAX_SEED
from .grammar_compiler import structured
from .guard.pipeline import PipelineRequest


def build(request: PipelineRequest, eos: int, speculative: str) -> Any:
    """eos: the model's main end token, -1 for none. speculative: as in ModelInfo. Not validated."""
    sampling = request.sampling
    config = genai.GenerationConfig()
    if eos >= 0:
        config.set_eos_token_id(eos)
    # A request's stop ids replace the model's list in GenAI; `stops` holds both.
    config.stop_token_ids = set(request.stops) | ({eos} if eos >= 0 else set())
    config.ignore_eos = sampling.ignore_eos
    config.max_new_tokens = request.max_tokens
    config.min_new_tokens = request.min_tokens
    config.logprobs = 1 if sampling.logprobs or request.echo else 0
    config.echo = request.echo
    if sampling.beams > 1:
        config.num_beams = sampling.beams
        config.num_return_sequences = sampling.n
        config.length_penalty = sampling.length_penalty
    else:
        _set_sampling(config, request)
    _set_assistant(config, request, speculative)
    if request.constraint:
        config.structured_output_config = structured(request.constraint)
    return config


def _set_sampling(config: Any, request: PipelineRequest) -> None:
    sampling = request.sampling
    config.repetition_penalty = sampling.repetition_penalty
    config.presence_penalty = sampling.presence_penalty
    config.frequency_penalty = sampling.frequency_penalty
    if sampling.temperature <= GREEDY_BELOW:
        return
    config.do_sample = True
    config.rng_seed = (request.seed + request.done) & MAX_SEED
    config.temperature = sampling.temperature
    config.top_p = sampling.top_p
    config.min_p = sampling.min_p
    if sampling.top_k:
        config.top_k = sampling.top_k


def _set_assistant(config: Any, request: PipelineRequest, speculative: str) -> None:
    """Every request of a speculative pipeline needs these; in others they would hang the request."""
    sampling = request.sampling
    if speculative == "draft" and sampling.assistant_confidence_threshold:
        config.assistant_confidence_threshold = sampling.assistant_confidence_threshold
    elif speculative:
        config.num_assistant_tokens = sampling.num_assistant_tokens
    if speculative == "prompt_lookup":
        config.max_ngram_size = sampling.max_ngram_size
