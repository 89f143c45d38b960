"""Finds grammars that make steps slow although their trial was fast: CPU time of steps, compared with that of others.

Only CPU time counts, so a busy machine makes nobody a suspect. Steps that compute prompts are compared with such steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq

from ...generation.sequence import GenerationRequest
from .sequence import GuardedSequence

LEAST_S = 0.5
"""CPU time beyond the usual after which a step is slow."""
FACTOR = 4
KNOWN = 8
"""Steps of a kind before the next can be slow."""
STRIKES = 2
"""Slow steps until a request is ended: the pipeline's own work may be slow once."""
SMOOTHING = 0.1


class SlowSteps:
    """One `begin` and one `suspect` for each step."""

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self._began = 0.0
        self._kinds = {False: _Usual(), True: _Usual()}  # by whether prompts are computed
        self._kind = self._kinds[False]
        self._strikes = 0
        self._matched: list[GenerationRequest] = []

    def begin(self, running: Seq[GuardedSequence]) -> None:
        self._kind = self._kinds[not all(s.has_output for s in running)]
        self._matched = list({s.request.id: s.request for s in running if s.constrained}.values())
        self._began = self._clock()

    def suspect(self, *, compiling: bool) -> GenerationRequest | None:
        """Returns, after a step, the request that is to be ended, because steps with its grammar are too slow.

        compiling: a thread compiles meanwhile, whose CPU time cannot be told from the step's.
        """
        step_s = self._clock() - self._began
        if compiling:
            return None
        if not self._matched or not self._kind.slow(step_s):
            self._kind.add(step_s, plain=not self._matched)
            self._strikes = 0
            return None
        self._strikes += 1
        if self._strikes < STRIKES:
            return None
        self._strikes = 0
        return max(self._matched, key=lambda r: (r.cost.mask_s if r.cost is not None else 0.0, r.id))


class _Usual:
    """CPU time of steps without grammars, smoothed; before any, the shortest of all."""

    def __init__(self) -> None:
        self._steps = 0
        self._shortest = float("inf")
        self._mean: float | None = None

    def slow(self, step_s: float) -> bool:
        if self._steps < KNOWN:
            return False
        usual = self._mean if self._mean is not None else self._shortest
        return step_s > LEAST_S + FACTOR * usual

    def add(self, step_s: float, *, plain: bool) -> None:
        self._steps += 1
        self._shortest = min(self._shortest, step_s)
        if plain:
            self._mean = step_s if self._mean is None else self._mean + SMOOTHING * (step_s - self._mean)
