"""Sampling parameters of one request as the engine needs them, complete and in range. Without numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..generation.request_validator import GREEDY_BELOW
from ..generation.sequence import GenerationRequest, Thinking

if TYPE_CHECKING:
    from .network import AdapterWeights, PromptEmbeddings

NO_LOGPROBS = -1
MAX_DRAFTED = 20
"""Draft tokens of a step at most where a draft model's confidence alone decides: transformers' default."""
MAX_COPIED = 32
"""Draft tokens of a step at most, and compared tokens of an n-gram, where requests do not set them."""


class NoToken(Exception):
    """Raised when a request's parameters leave no token to sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The parameters by which a request's tokens are chosen. The defaults are greedy decoding without other options."""

    temperature: float = 0.0
    """The divisor of the logits; 0 is greedy."""
    top_k: int = 0
    """The number of the likeliest tokens that are sampled from; 0: all."""
    top_p: float = 1.0
    """The share of the whole probability that the likeliest tokens, which are sampled from, have together; 1: all
    are."""
    min_p: float = 0.0
    """The least probability of a token that is sampled, as a part of that of the likeliest one."""
    repetition_penalty: float = 1.0
    """The divisor of positive logits, and factor of negative ones, of the tokens so far."""
    presence_penalty: float = 0.0
    """What is subtracted from the logit of each generated token."""
    frequency_penalty: float = 0.0
    """What is subtracted from the logit of a generated token for each time that it was generated."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """What is added to the logits of tokens, by their ids."""
    allowed_token_ids: tuple[int, ...] | None = None
    """The only tokens that may be generated; None allows all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids that must not be completed."""
    min_tokens: int = 0
    """The number of first tokens among which no stop token is generated."""
    stops: frozenset[int] = frozenset()
    """The ids that end the text."""
    logprobs: int = NO_LOGPROBS
    """The log probabilities that are wanted: -1 none, 0 that of the chosen token, k those of the k likeliest too."""
    logprob_token_ids: tuple[int, ...] = ()
    """The tokens whose log probabilities are wanted instead of those of the likeliest."""
    prompt_logprobs: int = NO_LOGPROBS
    """The log probabilities that are wanted of the prompt's tokens: -1 none, 0 their own, k those of the k likeliest
    too."""
    thinking: Thinking | None = None
    """The limit of reasoning, None if there is none."""
    beams: int = 1
    """The beams of a beam search; 1: there is none."""
    length_penalty: float = 1.0
    """The exponent of the length by which a beam search divides the log probability of a text."""
    early_stopping: bool | str = False
    """When a beam search ends: True, False or "never", with their meaning in transformers."""
    lookahead: int = 0
    """The most draft tokens of a step."""
    ngram: int = 3
    """The most tokens of an n-gram that is looked up."""
    confidence: float = 0.0
    """The least probability, by a draft model's own logits, of a token that its draft goes on with."""
    salt: str = ""
    """The salt of the request: in the prefix cache a text finds only blocks of the same salt."""
    adapter: AdapterWeights | None = None
    """The LoRA weights that are added to the model's, None if there are none."""
    images: PromptEmbeddings | None = None
    """The embeddings of the prompt's images, None if it is text alone."""

    @property
    def shift(self) -> int:
        """How far the position of a token behind the prompt is from its place."""
        return self.images.shift if self.images is not None else 0

    @property
    def penalised(self) -> bool:
        """Whether the request has penalties, by which logits depend on the tokens so far."""
        return bool(self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty)

    @property
    def edited(self) -> bool:
        """Whether logits are changed before a token is sampled, apart from a grammar."""
        return bool(
            self.penalised
            or self.logit_bias
            or self.allowed_token_ids is not None
            or self.bad_words
            or self.thinking is not None
            or (self.min_tokens and self.stops)
        )


def read(
    request: GenerationRequest,
    *,
    speculative: bool,
    ngrams: bool = False,
    adapter: AdapterWeights | None,
    images: PromptEmbeddings | None = None,
) -> Params:
    """Returns the parameters of a request.

    Args:
        request: The request.
        speculative: Whether it may have as many draft tokens as it asks for.
        ngrams: Whether it may have draft tokens of n-grams without asking.
        adapter: The LoRA weights that are added to the model's, None if there are none.
        images: The embeddings of the prompt's images, None if it is text alone.
    """
    sampling = request.sampling
    lookahead = MAX_COPIED if ngrams else (sampling.num_assistant_tokens or MAX_DRAFTED) if speculative else 0
    cold = sampling.temperature <= GREEDY_BELOW or sampling.beams > 1
    return Params(
        temperature=0.0 if cold else sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        min_tokens=min(sampling.min_tokens, request.max_tokens),
        stops=request.stops,
        logit_bias=dict(sampling.logit_bias),
        allowed_token_ids=sampling.allowed_token_ids,
        bad_words=request.bad_words,
        thinking=request.thinking,
        logprobs=sampling.top_logprobs if sampling.logprobs else NO_LOGPROBS,
        logprob_token_ids=sampling.logprob_token_ids if sampling.logprobs else (),
        prompt_logprobs=sampling.prompt_top_logprobs if sampling.prompt_logprobs else NO_LOGPROBS,
        salt=sampling.cache_salt,
        adapter=adapter,
        images=images,
        beams=sampling.beams,
        length_penalty=sampling.length_penalty,
        early_stopping=sampling.early_stopping,
        lookahead=lookahead if sampling.beams == 1 else 0,
        ngram=MAX_COPIED if ngrams else sampling.max_ngram_size,
        confidence=sampling.assistant_confidence_threshold,
    )
