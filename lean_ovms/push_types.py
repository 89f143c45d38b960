"""How the pieces of a stream get to its client without a task switch for each: from layer to layer, in plain calls.

A layer whose stream can push is Pushing; it gives the layer below it a Sink of its own. Every stream can be read, too:
its first and last pieces, and those that the sink is not ready for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sink(Generic[T]):
    """What takes pieces of a stream at once, in place of a reader that waits for the next one.

    ready: whether it takes one now; else the reader is woken and gets it.
    """

    ready: Callable[[], bool]
    push: Callable[[T], None]


class Pushing(Generic[T]):
    """Base of streams that can push: it saves the task switch that waking a reader costs for each token."""

    __slots__ = ()

    def push_to(self, sink: Sink[T]) -> None:
        """From now on, while the stream's reader waits for a piece, push it if the sink is ready."""
        raise NotImplementedError
