"""Requests to a generation.backend.Backend without a task and a pipe: they are added, stepped and read back."""

from __future__ import annotations

from collections.abc import Sequence

from lean_ovms.engine.generation.backend import Backend
from lean_ovms.engine.generation.sequence import GenerationRequest
from lean_ovms.engine.protocol import Failed, Tokens
from lean_ovms.types import SamplingParams


class Requests:
    """Requests of one completion each to one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._new: dict[int, list[int]] = {}

    def add(
        self, tokens: Sequence[int], sampling: SamplingParams, max_tokens: int, stops: frozenset[int] = frozenset()
    ) -> list[int]:
        """Queue a request for the next steps; returns the list that its tokens are added to."""
        number = len(self._new) + 1
        request = GenerationRequest(number, sampling, {0}, prompt=list(tokens), max_tokens=max_tokens, stops=stops)
        self._backend.check(request)
        self._backend.add(request)
        made = self._new[number] = []
        return made

    def busy(self) -> bool:
        """Some are not finished."""
        return not self._backend.idle

    def step(self) -> None:
        """One turn of the worker's loop."""
        backend = self._backend
        backend.admit()
        backend.step()
        for record in backend.out:
            if isinstance(record, Tokens):
                self._new[record.id] += record.tokens
            elif isinstance(record, Failed):
                raise RuntimeError(record.error[1])
        backend.out.clear()
