"""What generates tokens for requests: the interface between the task and an engine with its scheduler.

`paged.pipeline.PagedPipeline` implements it, `scripted.backend.ScriptedEngine` without a model, and
a feature may have others (manifest.BackendRow). No openvino here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from ...types.engine import EngineStats
from ..protocol import Record
from .fair_queue import FairQueue
from .loaded_model import ImagePlaceholders, LoadedModel
from .sequence import GenerationRequest

POSITIONS = 20
"""Places of a draft that are counted one by one: requests choose how long drafts are, and each is a series."""


@dataclass(slots=True)
class SpecDecodeStats:
    """Counts of draft tokens: those of a draft model, of prompt lookup, or of a pipeline that has either inside."""

    drafts: int = 0
    """The verified drafts of at least one token."""
    drafted: int | None = None
    """The tokens of these; None: not known."""
    accepted: int = 0
    """Those of them that were kept."""
    by_position: list[int] = field(default_factory=list)
    """The kept ones by their place in the draft, for the first POSITIONS places."""

    def begin(self, tokens: int) -> None:
        """Counts a draft of so many tokens, which is verified."""
        self.drafts += 1
        self.drafted = (self.drafted or 0) + tokens

    def accept(self, position: int) -> None:
        """Counts the token at this place of a draft, which is kept."""
        self.accepted += 1
        if position < POSITIONS:
            self.by_position += [0] * (position + 1 - len(self.by_position))
            self.by_position[position] += 1

    def stats(self) -> dict[str, Any]:
        """Returns the fields of types.engine.EngineStats that are about draft tokens."""
        return {
            "drafts": self.drafts,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "accepted_by_position": list(self.by_position),
        }


class WaitingRequests(Protocol):
    """Requests that were added and are not in the queue yet: their images are encoded first."""

    @property
    def waiting(self) -> int:
        """Requests of all clients."""

    def waiting_of(self, client: str) -> int: ...


class Backend(LoadedModel, Protocol):
    """One loaded model. Not thread-safe; it has one user."""

    image_placeholders: ImagePlaceholders | None
    """None: a text model."""
    image_queue: WaitingRequests | None
    """None: no request waits for images."""
    out: list[Record]
    """The records for the front end; the list is the same for ever."""
    requests: dict[int, GenerationRequest]
    """The requests that are not finished, by their numbers."""

    @property
    def waiting(self) -> FairQueue[Any]:
        """Sequences that have not started, or will start again."""

    @property
    def idle(self) -> bool:
        """There is nothing to step for."""

    @property
    def may_compile(self) -> bool:
        """A grammar may be compiled in a thread: no sequence is about to have its first step with one."""

    def check(self, request: GenerationRequest) -> None:
        """Raises errors.BadRequest for what this engine cannot compute. It may keep its own form of the request."""

    def add(self, request: GenerationRequest) -> None:
        """Queues a request that was checked."""

    def cancel(self, request_id: int, index: int | None) -> None:
        """Stops a request or one choice of it; an unknown id is one that has finished."""

    def admit(self, *, compiling: bool = False) -> None:
        """Starts waiting sequences as far as there is room. compiling: a thread compiles a grammar."""

    def step(self) -> None:
        """Computes once for every sequence that can be scheduled; results go to `out`. Raises errors.EngineLost."""

    def handle(self, command: Record) -> None:
        """Handles a command that is about no request: to forget what is cached of prompts, or one of a feature.

        The answer goes to `out`, some time for a feature's. Raises RequestError, NotSupported with the command's own
        text where nothing handles it.
        """

    def close(self) -> None:
        """Keeps what is to outlive the process."""

    def stats(self) -> EngineStats:
        """Returns a snapshot of all counts."""
