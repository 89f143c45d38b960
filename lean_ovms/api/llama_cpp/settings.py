"""How a request samples, in llama.cpp's words: generation_settings of /completion, params of /props.

A sampler that this server does not have is listed with the value with which llama.cpp turns it off.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...types import Json, SamplingParams

OFF: Json = {
    "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "top_n_sigma": -1.0,
    "xtc_probability": 0.0, "xtc_threshold": 0.1, "typical_p": 1.0, "repeat_last_n": -1,
    "dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
    "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "adaptive_target": -1.0, "adaptive_decay": 0.9,
    "n_keep": 0, "n_discard": 0, "min_keep": 0,
    "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"], "lora": [],
}  # fmt: skip


def settings(
    sampling: SamplingParams,
    *,
    stop: Sequence[str] = (),
    stream: bool = False,
    n_probs: int = 0,
    post_sampling: bool = False,
) -> Json:
    """The object of settings. n_predict -1: as many tokens as fit."""
    most = -1 if sampling.max_tokens is None else sampling.max_tokens
    return {
        "seed": sampling.seeds[0],
        **{name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "min_p")},
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        **OFF,
        "max_tokens": most,
        "n_predict": most,
        "stop": list(stop),
        "logit_bias": [{"bias": bias, "token": token} for token, bias in sampling.logit_bias],
        "ignore_eos": sampling.ignore_eos,
        "stream": stream,
        "n_probs": n_probs,
        "post_sampling_probs": post_sampling,
    }
