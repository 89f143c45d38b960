"""Sampling parameters of one request as the engine needs them, complete and in range. Without numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..generation.loaded_model import Thinking
from ..generation.request_validator import GREEDY_BELOW
from ..generation.sequence import GenerationRequest

if TYPE_CHECKING:
    from .adapters import AdapterWeights
    from .network import PromptEmbeddings

NO_LOGPROBS = -1
MAX_DRAFTED = 20
"""Draft tokens of a step at most where a draft model's confidence alone decides: transformers' default."""
MAX_COPIED = 32
"""Draft tokens of a step at most, and compared tokens of an n-gram, where requests do not set them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The defaults are greedy decoding without other options.

    temperature: 0 is greedy. top_k: 0 is off. logit_bias: token id to what is added to its logit. allowed_token_ids:
    None allows all. bad_words: sequences of ids that must not be completed. stops: ids that end the text; none of them
    is generated among the first min_tokens tokens. logprobs: -1 none, 0 of the chosen token, k also of the k likeliest.
    logprob_token_ids: these tokens instead of the likeliest. thinking: a limit of reasoning, or None.
    early_stopping: of beam search: True, False or "never", as in transformers.
    prompt_logprobs: the same for the prompt's tokens. beams: 1 is off.
    lookahead: most draft tokens per step; ngram: most tokens of an n-gram that is looked up.
    confidence: a draft model's draft ends before a token that is less likely by its own logits.
    salt: texts find only blocks of the same salt in the prefix cache. adapter: LoRA weights that are added to the
    model's. images: of the prompt, None if it is text alone.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    stops: frozenset[int] = frozenset()
    logprobs: int = NO_LOGPROBS
    logprob_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int = NO_LOGPROBS
    thinking: Thinking | None = None
    beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    lookahead: int = 0
    ngram: int = 3
    confidence: float = 0.0
    salt: str = ""
    adapter: AdapterWeights | None = None
    images: PromptEmbeddings | None = None

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
    """Returns the parameters of a request. speculative: it may have as many draft tokens as it asks for. ngrams: it may
    have those of n-grams without asking.
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
