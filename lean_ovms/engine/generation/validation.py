"""What the engine alone can check of a request's sampling: token ids, by its vocabulary. Knows no pipeline.

Types and ranges are checked where the request is read (api/fields.py and what uses it); every SamplingParams that
reaches the engine is complete and in range. An id outside the vocabulary is legal for openvino_genai's binding, and
kills or poisons the pipeline: a stop id far outside writes out of bounds, one of the prompt throws with a repetition
penalty inside the step of all requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import BadRequest
from ...types import SamplingParams

GREEDY_BELOW = 1e-5
"""Temperatures that divide every logit to infinity mean greedy decoding (vLLM's limit too)."""
MAX_SEED = (1 << 64) - 1
TOKENS = ("stop_token_ids", "logprob_token_ids", "allowed_token_ids")


def sampling(fields: dict[str, Any], vocab_size: int) -> SamplingParams:
    """Returns the fields of a Submit as SamplingParams. Raises BadRequest for an id outside the vocabulary."""
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    params = SamplingParams(**{**fields, **lists})
    params.logit_bias = tuple((token, bias) for token, bias in params.logit_bias)
    for name in TOKENS:
        if ids := getattr(params, name):
            token_ids(ids, vocab_size, name)
    if params.logit_bias:
        token_ids([token for token, _ in params.logit_bias], vocab_size, "logit_bias")
    return params


def token_ids(tokens: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises BadRequest with the first id that is not in [0, vocab_size)."""
    if not tokens or (min(tokens) >= 0 and max(tokens) < vocab_size):  # in C: 4,000 ids in 60 us
        return
    # Named by itself: a position would be that in one of several prompts, or none of a mapping.
    token = next(token for token in tokens if not 0 <= token < vocab_size)
    raise BadRequest(f"{param}: {token} is not a token id in [0, {vocab_size})", param=param)
