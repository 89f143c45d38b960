"""The base of the tasks, each of which is one kind of work on one loaded model.

A new kind is such a class in a feature, whose TaskRow names what loads it. The worker's loop knows nothing else of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import Any

from ..errors import TooManyRequests
from ..types.engine import ModelInfo, Vocabulary
from .errors import for_client
from .protocol import Ready, Record, Refused

NO_VOCABULARY = Vocabulary(pieces=[], exact=False)


def busy(why: str, retry_after_s: int = 1) -> TooManyRequests:
    """Returns the error for a command that finds too many others at work.

    Args:
        why: The beginning of its text, as a part of a sentence.
        retry_after_s: The seconds after which it may be sent again.
    """
    return TooManyRequests(f"{why}; please try again later", retry_after_s=retry_after_s)


class Task(ABC):
    """Does one kind of work on one loaded model, in the steps of the worker's loop. Only the loop's thread calls it."""

    def __init__(self, model_info: ModelInfo, vocabulary: Vocabulary = NO_VOCABULARY) -> None:
        self.out: list[Record] = []
        """Records for the front end. The loop sends and clears the list, which stays the same object."""
        self._model_info = model_info
        self._vocabulary = vocabulary

    @property
    @abstractmethod
    def idle(self) -> bool:
        """There is nothing to step for."""

    @property
    def accepts_commands(self) -> bool:
        """False: the commands handled since the last `admit` were expensive enough; the next ones wait for a step."""
        return True

    def ready(self) -> Ready:
        """Describes the loaded model to the front end."""
        return Ready(asdict(self._model_info), **self._vocabulary.to_wire())

    def handle(self, command: Record) -> None:
        """Handles a command; its replies go to `out`."""
        try:
            self._handle(command)
        except Exception as error:  # an error in one request must not end the loop
            self._refuse(command, error)

    @abstractmethod
    def _handle(self, command: Record) -> None:
        """Handles a command. What it raises becomes a Refused record."""

    def _refuse(self, command: Record, error: Exception) -> None:
        """Replies to a command that failed."""
        number: int = getattr(command, "id", 0)
        self.out.append(Refused(number, for_client(error, f"{command.kind} {number}").to_wire()))

    def admit(self) -> None:  # noqa: B027 - nothing is to be started where every step takes the next item
        """Starts waiting work, after the commands of a turn and before its step."""

    @abstractmethod
    def step(self) -> None:
        """Computes once; results go to `out`. Raises errors.EngineLost when the process must be replaced."""

    def close(self) -> None:  # noqa: B027 - most have nothing to keep
        """Keeps what is to outlive the process; called at last, when the connection is closed."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Returns the fields of types.engine.EngineStats."""
