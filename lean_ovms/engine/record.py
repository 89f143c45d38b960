"""The base classes of the records between the front end and the engine process. protocol.py has the records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

PREIMPORT = "preimport"
"""An argument of the engine process's command: import what every model needs before the first frame arrives. It is
defined here because the process is started before the front end has imported the records."""
LOG_FD = "LEAN_OVMS_ENGINE_LOG_FD"
"""The environment variable with the descriptor of the engine's log; stdout and stderr are for other output."""


COMMAND, EVENT, PARTIAL, ANSWER = "command", "event", "partial", "answer"
"""Roles of records. Only the front end sends commands. The engine answers a call with one ANSWER, possibly after
PARTIAL records; all its other records are EVENTs."""


class Record:
    """The base class of all records."""

    kind: ClassVar[str]
    """The name of the record in a frame, such as "prompt_logprobs" for PromptLogprobs."""
    role: ClassVar[str] = EVENT
    """The role of the record: COMMAND, EVENT, PARTIAL or ANSWER."""

    unhandled: ClassVar[str] = "this engine does not know this command"
    """The error message if nothing in an engine handles this command."""

    def __init_subclass__(cls) -> None:
        cls.kind = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def answer(self) -> Any:
        """Returns the result of a call that this ANSWER answers: the record itself, or its content."""
        return self

    def attached(self) -> Iterable[bytes]:
        """Returns the attachments, which are sent before the record's frame."""
        return ()

    def attach(self, parts: Iterator[bytes]) -> None:
        """Takes the attachments that the sender's `attached` returned. Raises StopIteration if there are too few."""


class DataRecord(Record):
    """The base class of records with one attachment, `data`."""

    data: bytes

    def attached(self) -> Iterable[bytes]:
        return (self.data,)

    def attach(self, parts: Iterator[bytes]) -> None:
        self.data = next(parts)


class PixelsRecord(Record):
    """The base class of records with images: `pixels` has an attachment for each, and `images` their properties."""

    images: list[list[int]]
    pixels: list[bytes]

    def attached(self) -> Iterable[bytes]:
        return self.pixels

    def attach(self, parts: Iterator[bytes]) -> None:
        self.pixels = [next(parts) for _ in self.images]
