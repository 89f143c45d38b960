"""The seam between the paged engine and features: what a feature may do around its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..record import Record

if TYPE_CHECKING:
    from ...config import EngineConfig
    from ..loading.settings import PipelineSettings
    from .block_manager import BlockManager, Parent
    from .model import PagedModel
    from .sequence import Sequence
    from .state_checkpoints import StateCache


class StepHook:
    """A feature's part of an engine. Each method does nothing here; only the engine's thread calls them."""

    @property
    def working(self) -> bool:
        """Whether the engine is to go on calling `poll`, though it may have nothing to compute."""
        return False

    def added(self, sequence: Sequence) -> None:
        """Is told of the first sequence of a request that is queued now."""

    def poll(self) -> Iterable[Record]:
        """Takes up what was done meanwhile, before sequences are started. Returns records for the front end."""
        return ()

    def must_wait(self, sequence: Sequence, root: Parent | None) -> bool:
        """Returns whether a waiting sequence is not to be started yet, so that those behind it pass.

        Args:
            sequence: the sequence, which could be started.
            root: the parent of its first block in the prefix cache; None: it does not use the prefix cache.
        """
        return False

    def give_back(self) -> None:
        """Frees the blocks of the KV cache that the feature holds: a running sequence lacks some."""

    def begin_step(self) -> None:
        """Is told that a step is about to be chosen and computed."""

    def end_step(self, tokens: int) -> None:
        """Is told that a step with prompts was computed. tokens: those of all its sequences."""

    def changed(self) -> None:
        """Is told that a step or a command is over, which may have changed the prefix cache."""

    def rest(self) -> None:
        """Is called again and again while no sequence runs; it may wait for a few milliseconds."""

    def handle(self, command: Record) -> bool:
        """Handles a command, unless it is another's; returns whether it did. Raises RequestError."""
        return False

    def stats(self) -> dict[str, float]:
        """Returns values of the feature's metrics, by the names of the metrics."""
        return {}

    def close(self) -> None:
        """Keeps what is to outlive the process, and ends threads."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """The parts of a loaded engine, to which a feature's `install` adds its own; equal to no other engine's."""

    config: EngineConfig
    """The options of the model."""
    settings: PipelineSettings
    """What the options mean for this model and machine."""
    network: PagedModel
    """The network, with the buffers of its cache."""
    blocks: BlockManager
    """The blocks of the KV cache; a feature may add a watcher to it."""
    states: StateCache
    """The states of a hybrid network."""
    hooks: list[StepHook]
    """What features do around steps; a feature adds its own."""
    out: list[Record]
    """Records for the front end."""
    versions: dict[str, str]
    """The versions of the libraries that compute, by their names."""
    adapter_name: Callable[[str], str]
    """Returns the name of an adapter for its key."""
