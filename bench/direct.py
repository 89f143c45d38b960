"""Requests to a generation.backend.Backend without a task and a pipe: they are added, stepped and read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lean_ovms.engine.generation.backend import Backend
from lean_ovms.engine.generation.sequence import GenerationRequest
from lean_ovms.engine.protocol import Failed, Tokens
from lean_ovms.types import SamplingParams


@dataclass(slots=True)
class Output:
    """New tokens of a step, by the name that openvino_genai's have."""

    generated_ids: list[int]
    generated_log_probs: list[float]


@dataclass(slots=True, eq=False)
class Completion:
    """One request; what is new is read as from a handle of openvino_genai."""

    new: list[Output] = field(default_factory=list)

    def can_read(self) -> bool:
        """There is a step's output that was not read."""
        return bool(self.new)

    def read(self) -> dict[int, Output]:
        """The next output."""
        return {0: self.new.pop(0)}


class Requests:
    """Requests of one completion each to one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._completions: dict[int, Completion] = {}
        self._added = 0

    def add(
        self,
        tokens: Sequence[int],
        sampling: SamplingParams,
        max_tokens: int,
        *,
        stops: frozenset[int] = frozenset(),
        adapter: str = "",
    ) -> Completion:
        """Queue a request for the next steps."""
        self._added += 1
        request = GenerationRequest(self._added, sampling, {0}, prompt=list(tokens), max_tokens=max_tokens, stops=stops)
        request.adapter = adapter
        self._backend.check(request)
        self._backend.add(request)
        made = self._completions[self._added] = Completion()
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
                self._completions[record.id].new.append(Output(record.tokens, record.logprobs or []))
            elif isinstance(record, Failed):
                raise RuntimeError(record.error[1])
        backend.out.clear()
