"""What the worker's loop needs of a task: one kind of work on one loaded model.

A new kind (embeddings, speech) is a module engine/<task>/task.py that implements this protocol, and a branch of `load`
in __main__.py. The loop knows nothing else about it.
"""

from __future__ import annotations

from typing import Protocol

from ..protocol import Ready, Record


class Task(Protocol):
    """Single-threaded; only the loop calls it."""

    out: list[Record]
    """Records for the front end. The loop sends and clears the list; it must stay the same object."""

    @property
    def idle(self) -> bool:
        """There is nothing to step for."""

    @property
    def accepts_commands(self) -> bool:
        """False: the commands handled since the last `admit` were expensive enough; the next ones wait for a step."""

    def ready(self) -> Ready:
        """Describes the loaded model to the front end."""

    def handle(self, command: Record) -> None:
        """Handles a command; its replies go to `out`. Must not raise: an error in one command is a Refused record."""

    def admit(self) -> None:
        """Starts waiting work, after the commands of a turn and before its step."""

    def step(self) -> None:
        """Computes once; results go to `out`. Raises errors.EngineLost when the process must be replaced."""

    def close(self) -> None:
        """Keeps what is to outlive the process; called at last, when the connection is closed."""

    def stats(self) -> dict[str, int]:
        """Returns the fields of engine_types.EngineStats."""
