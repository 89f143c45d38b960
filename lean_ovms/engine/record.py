"""The base of all records between front end and engine child; protocol.py has them and their framing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

PREIMPORT = "preimport"
"""Argument of the child's command: import what every model needs, before the first frame arrives. It is here because
the child is started before the front end has imported the records."""
LOG_FD = "LEAN_OVMS_ENGINE_LOG_FD"
"""Environment variable of the child: the descriptor for its log. Its stdout and stderr are for what is printed."""


class Record:
    """Base of all records. kind: what it is called in a frame: "prompt_logprobs" for PromptLogprobs."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.kind = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def attached(self) -> Iterable[bytes]:
        """The bytes that are sent before the record's frame."""
        return ()

    def attach(self, parts: Iterator[bytes]) -> None:
        """Take from `parts` what `attached` returned on the other side. Raises StopIteration if there are too few."""


class DataRecord(Record):
    """Base of records with one attachment, `data`."""

    data: bytes

    def attached(self) -> Iterable[bytes]:
        return (self.data,)

    def attach(self, parts: Iterator[bytes]) -> None:
        self.data = next(parts)
