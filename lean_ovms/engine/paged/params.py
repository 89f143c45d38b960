"""The sampling parameters of one request as the engine needs them, complete and in range."""

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
"""The most draft tokens in a step if only the draft model's confidence limits them; transformers' default."""
MAX_COPIED = 32
"""The most draft tokens in a step, and the longest n-gram to look up, if a request does not set them."""


class NoToken(Exception):
    """Raised if a request's parameters leave no token to sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The parameters by which a request's tokens are chosen. The defaults mean greedy decoding."""

    temperature: float = 0.0
    """The divisor of the logits; 0 for greedy decoding."""
    top_k: int = 0
    """The number of likeliest tokens to sample from; 0 for all."""
    top_p: float = 1.0
    """The probability mass of the likeliest tokens to sample from; 1 for all tokens."""
    min_p: float = 0.0
    """The least probability of a sampled token, relative to the likeliest token."""
    repetition_penalty: float = 1.0
    """The factor by which positive logits of earlier tokens are divided, and negative ones multiplied."""
    presence_penalty: float = 0.0
    """The amount subtracted from the logit of each token that was generated before."""
    frequency_penalty: float = 0.0
    """The amount subtracted from the logit of a token for each time that it was generated before."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """The amounts added to logits, by token id."""
    allowed_token_ids: tuple[int, ...] | None = None
    """The only tokens that may be generated; None for all tokens."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of token ids that must not be generated."""
    min_tokens: int = 0
    """The number of tokens before which no stop token may be generated."""
    stops: frozenset[int] = frozenset()
    """The ids of the stop tokens."""
    logprobs: int = NO_LOGPROBS
    """Which log probabilities to report: -1 for none, 0 for the chosen token, k for the k likeliest tokens, too."""
    logprob_token_ids: tuple[int, ...] = ()
    """The tokens whose log probabilities to report instead of those of the likeliest."""
    prompt_logprobs: int = NO_LOGPROBS
    """Which log probabilities of the prompt to report: -1 for none, 0 for its tokens, k for the k likeliest, too."""
    thinking: Thinking | None = None
    """The limit of reasoning tokens; None for none."""
    beams: int = 1
    """The number of beams; 1 for no beam search."""
    length_penalty: float = 1.0
    """The exponent of a text's length, by which beam search divides its log probability."""
    early_stopping: bool | str = False
    """The end condition of beam search: True, False or "never", as in transformers."""
    lookahead: int = 0
    """The most draft tokens in a step."""
    ngram: int = 3
    """The most tokens of an n-gram to look up."""
    confidence: float = 0.0
    """The least probability, by the draft model's logits, of a draft token after which drafting continues."""
    salt: str = ""
    """The cache salt: prompts share cached blocks only if their salts are equal."""
    adapter: AdapterWeights | None = None
    """The adapter's weights, which are added to the model's; None for no adapter."""
    images: PromptEmbeddings | None = None
    """The embeddings of the prompt's images; None for a prompt of text alone."""

    @property
    def shift(self) -> int:
        """The offset from the index of a token after the prompt to its position."""
        return self.images.shift if self.images is not None else 0

    @property
    def penalised(self) -> bool:
        """Whether there are penalties, so that logits depend on earlier tokens."""
        return bool(self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty)

    @property
    def edited(self) -> bool:
        """Whether anything besides a grammar changes the logits before sampling."""
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
    """Returns the parameters of a request in the engine's form.

    Args:
        request: The request.
        speculative: Whether a draft model or prompt lookup is available, so that the request's number of draft tokens
            applies.
        ngrams: Whether n-grams are looked up even if the request does not ask for it.
        adapter: The adapter's weights, which are added to the model's; None for no adapter.
        images: The embeddings of the prompt's images; None for a prompt of text alone.
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
