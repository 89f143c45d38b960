"""The base class of tasks, each of which is one kind of work on one loaded model.

A new task is a subclass in a feature, whose TaskRow names the function that loads it. The worker's loop knows only this
base class.
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
    """Returns the error for a command that is refused because too many wait; `why` begins its message."""
    return TooManyRequests(f"{why}; please try again later", retry_after_s=retry_after_s)


class Task(ABC):
    """Does one kind of work on one loaded model, in the steps of the worker's loop, and only in its thread."""

    def __init__(self, model_info: ModelInfo, vocabulary: Vocabulary = NO_VOCABULARY) -> None:
        self.out: list[Record] = []
        """The records for the front end. The loop sends and clears the list, which is always the same object."""
        self._model_info = model_info
        self._vocabulary = vocabulary

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether there is nothing to compute."""

    @property
    def accepts_commands(self) -> bool:
        """Whether another command may be handled before the next step; not if those since `admit` took long."""
        return True

    def ready(self) -> Ready:
        """Describes the loaded model to the front end."""
        return Ready(asdict(self._model_info), self._vocabulary.to_wire())

    def handle(self, command: Record) -> None:
        """Handles a command, and adds its replies to `out`."""
        try:
            self._handle(command)
        except Exception as error:  # an error in one request must not end the loop
            self._refuse(command, error)

    @abstractmethod
    def _handle(self, command: Record) -> None:
        """Handles a command. An exception becomes a Refused record."""

    def _refuse(self, command: Record, error: Exception) -> None:
        """Adds the reply to a command that failed."""
        number: int = getattr(command, "id", 0)
        self.out.append(Refused(number, for_client(error, f"{command.kind} {number}").to_wire()))

    def admit(self) -> None:  # noqa: B027 - nothing is to be started where every step takes the next item
        """Starts waiting work. It is called after the commands of a loop turn, before the step."""

    @abstractmethod
    def step(self) -> None:
        """Computes a step, and adds the results to `out`. Raises errors.EngineLost if the process must be replaced."""

    def close(self) -> None:  # noqa: B027 - most have nothing to keep
        """Saves what should survive the process; called last, when the connection is closed."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Returns the fields of types.engine.EngineStats."""
