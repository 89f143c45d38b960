"""The records about ids of texts, texts of ids, and what is cached of prompts; protocol.py has their framing."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from .record import ANSWER, COMMAND, Record

JSON_IDS = 8192
"""The most ids of all texts of an Encode that are sent as JSON."""


def joined(parts: Iterator[bytes], count: int) -> str:
    """A long text from its parts. Raises StopIteration."""
    texts: list[str] = []
    for _ in range(count):
        texts.append(next(parts).decode())
    return "".join(texts)


@dataclass(slots=True)
class Encode(Record):
    """Tokenize texts. Answered by one Encoded or Refused. client: as in Submit.

    parts, data: as `parts` and `texts` of Submit, instead of one long text.
    """

    role = COMMAND
    id: int
    texts: list[str]
    add_special_tokens: bool
    client: str = ""
    parts: int = 0
    data: list[bytes] = field(default_factory=list, metadata={"attached": True})

    def attached(self) -> Iterable[bytes]:
        return self.data

    def attach(self, parts: Iterator[bytes]) -> None:
        if self.parts:
            self.texts = [joined(parts, self.parts)]


@dataclass(slots=True)
class Decode(Record):
    """Detokenize with the model's own detokenizer. Answered by one Decoded or Refused."""

    role = COMMAND
    id: int
    tokens: list[int]
    skip_special_tokens: bool


@dataclass(slots=True)
class Encoded(Record):
    """The ids of each text of an Encode.

    sizes, data: of texts with many ids, instead of `tokens`: how many each has, and all ids as int32 of this machine.
    """

    role = ANSWER
    id: int
    tokens: list[list[int]]
    sizes: list[int] = field(default_factory=list)
    data: bytes = field(default=b"", metadata={"attached": True})

    @classmethod
    def of(cls, number: int, texts: Sequence[list[int] | array[int]]) -> Encoded:
        """A million ids as JSON would take 15 ms to write and 60 ms to read, in one call each (2026-11)."""
        sizes = [len(ids) for ids in texts]
        if sum(sizes) <= JSON_IDS:
            return cls(number, [list(ids) for ids in texts])
        return cls(number, [], sizes, b"".join([memoryview(array("i", ids)) for ids in texts]))

    def attached(self) -> Iterable[bytes]:
        return (self.data,) if self.sizes else ()

    def attach(self, parts: Iterator[bytes]) -> None:
        if self.sizes:
            self.data = next(parts)


@dataclass(slots=True)
class Decoded(Record):
    """The text of a Decode."""

    role = ANSWER
    id: int
    text: str

    def answer(self) -> str:
        return self.text


@dataclass(slots=True)
class ResetPrefixCache(Record):
    """Asks for what is cached of prompts to be forgotten. Answered by one PrefixCacheReset or Refused."""

    role = COMMAND
    id: int
    external: bool = False
    """Whether what features keep of it elsewhere is forgotten, too."""


@dataclass(slots=True)
class PrefixCacheReset(Record):
    """Says that nothing is cached of the prompts so far."""

    role = ANSWER
    id: int
