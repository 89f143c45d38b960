"""Builds the chain of samplers of one sequence, in llama.cpp's order or in that of its request.

The engine samples from the softmax of the logits that the chain leaves, so random numbers, seeds, draft tokens and log
probabilities work as in any other request. At temperature 0 it takes the likeliest of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ....engine.generation.fair_queue import TokenCost
from ....engine.generation.request_validator import GREEDY_BELOW
from ....engine.paged.engine import ModelTokenizer
from ....engine.paged.sampling.logits_processors import counts_of, penalise
from ....engine.paged.sampling.random_sampling import uniform
from ....engine.paged.sequence import Sequence
from ..fields import uses_dry, uses_xtc
from . import filters
from .dry import Dry, breakers_of
from .filters import FORBIDDEN, Candidates
from .selectors import AdaptiveP, Mirostat, Selector

Sampler = Callable[[Candidates], None]
CHANCE = 1 << 32
"""The number of XTC's random number at a position, after all that sampling the token may use."""


SORTING = ("typ_p", "top_p")
"""The samplers that may sort all candidates."""
SORT_S, PASS_S = 1e-7, 5e-9
"""The CPU seconds of such a sampler, and of any other one, for each candidate, until the chain has been measured."""
RATE = 0.2
"""The weight of a new measurement in the moving average."""


@dataclass(slots=True)
class ChainCost:
    """The measured cost of a request's chain, with that of its grammar (engine.generation.fair_queue.TokenCost)."""

    grammar: TokenCost | None
    """The cost of the grammar; None if the request has none."""
    chain_s: float
    """The CPU seconds of the chain for one token."""

    @property
    def token_s(self) -> float:
        """The CPU seconds for one token."""
        return self.chain_s + (self.grammar.token_s if self.grammar is not None else 0.0)

    @property
    def notices(self) -> Seq[str]:
        """Warnings about parts of the schema that the grammar does not enforce."""
        return self.grammar.notices if self.grammar is not None else ()

    def learn(self, seconds: float) -> None:
        """Takes the time of the chain for a token."""
        self.chain_s += RATE * (seconds - self.chain_s)


class Chain:
    """An engine.paged.sequence.SamplerChain."""

    def __init__(self, sequence: Sequence, tokenizer: ModelTokenizer) -> None:
        """Builds the chain that the sequence's request asks for; the tokenizer finds DRY's sequence breakers."""
        self._sequence = sequence
        self._params = sequence.request.sampling
        assert self._params.sampler_chain is not None
        self._settings = self._params.sampler_chain
        self._tokenizer = tokenizer
        self._min_keep = int(self._settings["min_keep"])
        self._greedy = self._params.temperature <= GREEDY_BELOW
        names = ["temperature"] if self._settings["mirostat"] else self._settings["samplers"]
        found = {name: sampler for name in names if (sampler := self._sampler(name)) is not None}
        self._samplers = [found[name] for name in names if name in found]
        self._selector = None if self._greedy else self._last(names)
        request = sequence.request
        if not isinstance(request.cost, ChainCost):
            request.cost = ChainCost(request.cost, self._first_s([name for name in names if name in found]))
        self._cost = request.cost

    def apply(self, row: NDArray[np.float32]) -> None:
        """Replaces the logits; a row without any allowed token stays as it is."""
        if row.max() == FORBIDDEN:
            return
        began = time.thread_time()
        candidates = Candidates(row)
        for sampler in self._samplers:
            sampler(candidates)
        if self._selector is not None:
            self._selector.apply(candidates)
        candidates.write()
        self._cost.learn(time.thread_time() - began)

    def accept(self, token: int) -> None:
        """Has the last sampler learn from the token that was sampled."""
        if self._selector is not None:
            self._selector.accept(token)

    def _first_s(self, names: list[str]) -> float:
        """Returns the CPU seconds for a token that are assumed of samplers in their order."""
        size, seconds = len(self._tokenizer.vocabulary.pieces), 0.0
        for name in names:
            seconds += size * (SORT_S if name in SORTING else PASS_S)
            size = min(size, self._params.top_k) if name == "top_k" else size
        return seconds

    def _sampler(self, name: str) -> Sampler | None:
        """Returns a sampler by its name; None if its settings switch it off."""
        params, settings, keep = self._params, self._settings, self._min_keep
        if name == "penalties":
            return self._penalise if params.penalised and settings["repeat_last_n"] else None
        if name == "dry":
            if not uses_dry(settings):
                return None
            breakers = breakers_of(self._tokenizer, tuple(settings["dry_sequence_breakers"]))
            return partial(self._reduce_repetitions, Dry(settings, breakers))
        if name == "temperature":
            return None if self._greedy else self._temperature()
        if name == "xtc":
            return self._exclude_top_choices if uses_xtc(settings) else None
        rows: dict[str, tuple[bool, Sampler]] = {
            "top_k": (params.top_k > 0, partial(filters.top_k, most=params.top_k)),
            "top_p": (params.top_p < 1, partial(filters.top_p, mass=params.top_p, min_keep=keep)),
            "min_p": (params.min_p > 0, partial(filters.min_p, fraction=params.min_p, min_keep=keep)),
            "typ_p": (
                settings["typical_p"] < 1,
                partial(filters.typical_p, mass=settings["typical_p"], min_keep=keep),
            ),
            "top_n_sigma": (
                settings["top_n_sigma"] > 0,
                partial(filters.top_n_sigma, sigmas=settings["top_n_sigma"]),
            ),
        }
        on, sampler = rows.get(name, (False, None))
        return sampler if on else None

    def _temperature(self) -> Sampler:
        value, distance = self._params.temperature, self._settings["dynatemp_range"]
        if not distance or self._settings["mirostat"]:
            return partial(filters.temperature, value=value)
        exponent = self._settings["dynatemp_exponent"]
        return partial(
            filters.dynamic_temperature, least=max(0.0, value - distance), most=value + distance, exponent=exponent
        )

    def _last(self, names: list[str]) -> Selector | None:
        """Returns the sampler at the end of the chain; None if the token is sampled from what the others leave."""
        if self._settings["mirostat"]:
            return Mirostat(self._settings)
        return AdaptiveP(self._settings) if "adaptive_p" in names and self._settings["adaptive_target"] >= 0 else None

    def _penalise(self, candidates: Candidates) -> None:
        """Applies the penalties to the latest tokens; without a limit, as without a chain (logits_processors)."""
        sequence, latest = self._sequence, self._settings["repeat_last_n"]
        if latest < 0:
            counts = counts_of(sequence)
            ids, times = counts.ids, counts.counts
        else:
            ids, found = np.unique(np.array(sequence.ids[-latest:], np.int64), return_counts=True)
            ids, times = ids[ids >= 0], found[ids >= 0].astype(np.float32)
        places, known = candidates.find(ids)
        penalise(candidates.logits, places, times[known], self._params)

    def _reduce_repetitions(self, dry: Dry, candidates: Candidates) -> None:
        tokens, amounts = dry.penalties(self._sequence.ids)
        places, known = candidates.find(tokens)
        candidates.logits[places] -= amounts[known]

    def _exclude_top_choices(self, candidates: Candidates) -> None:
        """Applies XTC with its probability, by a random number that depends on the seed and the position alone."""
        sequence, settings = self._sequence, self._settings
        seed, position = np.array([sequence.seed], np.uint64), np.array([sequence.generated], np.uint64)
        if len(candidates) > 1 and uniform(seed, position, CHANCE)[0] <= settings["xtc_probability"]:
            filters.exclude_top_choices(candidates, settings["xtc_threshold"], self._min_keep)
