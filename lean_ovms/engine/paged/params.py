"""Parameters of one request, complete and in range. Pure data, without numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..generation.pipeline import Thinking

if TYPE_CHECKING:
    from .adapters import Adapter

NO_LOGPROBS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The defaults are greedy decoding without other options.

    temperature: 0 is greedy. top_k: 0 is off. logit_bias: token id to what is added to its logit. allowed_token_ids:
    None allows all. bad_words: sequences of ids that must not be completed. stops: ids that end the text; none of them
    is generated among the first min_tokens tokens. logprobs: -1 none, 0 of the chosen token, k also of the k likeliest.
    logprob_token_ids: these tokens instead of the likeliest. thinking: a limit of reasoning, or None.
    early_stopping: of beam search: True, False or "never", as in transformers.
    prompt_logprobs: the same for the prompt's tokens. seed: with the place in the text it determines the random number.
    beams: 1 is off. lookahead: most tokens guessed per step; ngram: longest run of tokens that a guess goes on from.
    confidence: a draft model's guess ends before a token that is less likely by its own logits.
    priority: smaller goes first. salt: texts find only blocks of the same salt in the prefix cache.
    group: texts of one group begin with the same prompt and share its blocks, also without a prefix cache; "": none.
    adapter: LoRA weights that are added to the model's.
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
    max_tokens: int = 16
    min_tokens: int = 0
    stops: frozenset[int] = frozenset()
    seed: int = 0
    logprobs: int = NO_LOGPROBS
    logprob_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int = NO_LOGPROBS
    thinking: Thinking | None = None
    n: int = 1
    beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    lookahead: int = 0
    ngram: int = 3
    confidence: float = 0.0
    priority: int = 0
    salt: str = ""
    group: str = ""
    adapter: Adapter | None = None

    @property
    def penalised(self) -> bool:
        """Logits depend on the tokens so far."""
        return bool(self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty)

    @property
    def edited(self) -> bool:
        """Logits are changed before a token is chosen, apart from a grammar."""
        return bool(
            self.penalised
            or self.logit_bias
            or self.allowed_token_ids is not None
            or self.bad_words
            or self.thinking is not None
            or (self.min_tokens and self.stops)
        )
