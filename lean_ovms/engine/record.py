"""The base of all records between front end and engine child; protocol.py has them and their framing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

PREIMPORT = "preimport"
"""Argument of the child's command: import what every model needs, before the first frame arrives. It is here because
the child is started before the front end has imported the records."""
LOG_FD = "LEAN_OVMS_ENGINE_LOG_FD"
"""Environment variable of the child: the descriptor for its log. Its stdout and stderr are for what is printed."""


COMMAND, EVENT, PARTIAL, ANSWER = "command", "event", "partial", "answer"
"""Roles of records. Only the front end sends commands; an engine answers a call with one ANSWER, before which there may
be PARTIAL ones, and all else with EVENTs."""


class Record:
    """Base of all records."""

    kind: ClassVar[str]
    """What it is called in a frame: "prompt_logprobs" for PromptLogprobs."""
    role: ClassVar[str] = EVENT
    """Who sends it, and what for: COMMAND, EVENT, PARTIAL or ANSWER."""

    unhandled: ClassVar[str] = "this engine does not know the command"
    """The error for a command that nothing in an engine handles."""

    def __init_subclass__(cls) -> None:
        cls.kind = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def answer(self) -> Any:
        """Returns what the caller gets, for an ANSWER: the record, or what is in it."""
        return self

    def attached(self) -> Iterable[bytes]:
        """Returns the bytes that are sent before the record's frame."""
        return ()

    def attach(self, parts: Iterator[bytes]) -> None:
        """Takes from `parts` what `attached` returned on the other side. Raises StopIteration if there are too few."""


class DataRecord(Record):
    """Base of records with one attachment, `data`."""

    data: bytes

    def attached(self) -> Iterable[bytes]:
        return (self.data,)

    def attach(self, parts: Iterator[bytes]) -> None:
        self.data = next(parts)


class PixelsRecord(Record):
    """Base of records with images, `pixels`, each of which is an attachment, and with what is known of each of them,
    `images`."""

    images: list[list[int]]
    pixels: list[bytes]

    def attached(self) -> Iterable[bytes]:
        return self.pixels

    def attach(self, parts: Iterator[bytes]) -> None:
        self.pixels = [next(parts) for _ in self.images]
