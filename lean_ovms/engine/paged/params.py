"""The sampling parameters of a request, as the paged engine uses them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ...types import SamplingParams
from ..generation.request_validator import GREEDY_BELOW
from ..generation.sequence import GenerationRequest

if TYPE_CHECKING:
    from .network import AdapterWeights, PromptEmbeddings

MAX_DRAFTED = 20
"""The most draft tokens in a step if only the draft model's confidence limits them; transformers' default."""
MAX_COPIED = 32
"""The most draft tokens in a step, and the longest n-gram to look up, if a request does not set them."""


class NoToken(Exception):
    """Raised if a request's parameters leave no token to sample."""


class Prepared(NamedTuple):
    """The native form of a request in the paged engine (GenerationRequest.native)."""

    params: SamplingParams
    """The sampling parameters, as `engine_params` returns them."""
    adapter: AdapterWeights | None = None
    """The adapter's weights, which are added to the model's; None for no adapter."""
    images: PromptEmbeddings | None = None
    """The embeddings of the prompt's images; None for a prompt of text alone."""


def engine_params(request: GenerationRequest, *, speculative: bool, ngrams: bool = False) -> SamplingParams:
    """Returns a request's sampling parameters with what the engine decides: draft tokens and greedy decoding.

    Args:
        request: The request.
        speculative: Whether a draft model or prompt lookup is available, so that the request's number of draft tokens
            applies.
        ngrams: Whether n-grams are looked up even if the request does not ask for it.
    """
    sampling = request.sampling
    drafted = MAX_COPIED if ngrams else (sampling.num_assistant_tokens or MAX_DRAFTED) if speculative else 0
    cold = sampling.temperature <= GREEDY_BELOW or sampling.beams > 1
    return replace(
        sampling,
        temperature=0.0 if cold else sampling.temperature,
        min_tokens=min(sampling.min_tokens, request.max_tokens),
        num_assistant_tokens=drafted if sampling.beams == 1 else 0,
        max_ngram_size=MAX_COPIED if ngrams else sampling.max_ngram_size,
    )
