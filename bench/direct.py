"""Adds requests to a generation.backend.Backend, runs its steps and reads its tokens, without a task and a pipe."""

from __future__ import annotations

from collections.abc import Sequence

from lean_ovms.engine.generation.backend import Backend
from lean_ovms.engine.generation.fair_queue import GenerationRequest
from lean_ovms.engine.protocol import Failed, Tokens
from lean_ovms.types import SamplingParams


class Requests:
    """The requests to one backend, each with a single completion."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._new: dict[int, list[int]] = {}

    def add(
        self, tokens: Sequence[int], sampling: SamplingParams, max_tokens: int, stops: frozenset[int] = frozenset()
    ) -> list[int]:
        """Adds a request, which the next steps will compute. Returns the list that receives its tokens."""
        number = len(self._new) + 1
        request = GenerationRequest(number, sampling, {0}, prompt=list(tokens), max_tokens=max_tokens, stops=stops)
        self._backend.check(request)
        self._backend.add(request)
        made = self._new[number] = []
        return made

    def busy(self) -> bool:
        """Returns whether some requests are not finished."""
        return not self._backend.idle

    def step(self) -> None:
        """Runs one step, as the worker's loop does."""
        backend = self._backend
        backend.admit()
        backend.step()
        for record in backend.out:
            if isinstance(record, Tokens):
                self._new[record.id] += record.tokens
            elif isinstance(record, Failed):
                raise RuntimeError(record.error[1])
        backend.out.clear()
