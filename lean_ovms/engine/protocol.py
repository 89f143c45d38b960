"""The records between front end and engine child, and their framing.

A frame is a little-endian u32 length and that many bytes of JSON: an array of records, each an array
[kind, field, ...] in the order of the dataclass below. One frame carries all records of a step, so a busy engine
costs one write and one wake-up per step for any number of streams. JSON by orjson measured fastest for the token
frames (0.44 us at one record, 4.8 us at 64; struct and pickle were slower), and nothing here can run code.

Pixels, vectors and long prompts are not JSON: a length with its highest bit set is followed by raw bytes, an
attachment. Attachments come before the frame of the records that they belong to, in the order of the records.

This module knows no asyncio and no sockets: bytes in, records out.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import compress
from operator import attrgetter, ne
from typing import Any

import orjson

from .record import ANSWER, COMMAND, DataRecord
from .record import Record as Record

JSON_IDS = 8192
"""The most ids of all texts of an Encode that are sent as JSON."""


def joined(parts: Iterator[bytes], count: int) -> str:
    """Returns a long text from its parts. Raises StopIteration."""
    texts: list[str] = []
    for _ in range(count):
        texts.append(next(parts).decode())
    return "".join(texts)


@dataclass(slots=True)
class Encode(Record):
    """Tokenizes texts. It gets one Encoded or Refused."""

    role = COMMAND
    id: int
    """The number of the command."""
    texts: list[str]
    """The texts."""
    add_special_tokens: bool
    """Whether the tokenizer adds special tokens to each text."""
    client: str = ""
    """Who sends it; clients take turns."""
    parts: int = 0
    """The number of `data`."""
    data: list[bytes] = field(default_factory=list, metadata={"attached": True})
    """One long text in UTF-8, in parts; `texts` is empty on the way."""

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
    """The number of the command."""
    tokens: list[int]
    """The ids."""
    skip_special_tokens: bool
    """Whether special tokens are left out of the text."""


@dataclass(slots=True)
class Encoded(Record):
    """The ids of each text of an Encode."""

    role = ANSWER
    id: int
    """The number of the command."""
    tokens: list[list[int]]
    """The ids of each text; empty where `data` has them."""
    sizes: list[int] = field(default_factory=list)
    """The number of ids of each text, where `data` has them."""
    data: bytes = field(default=b"", metadata={"attached": True})
    """All ids of texts with many, as int32 of this machine."""

    @classmethod
    def of(cls, number: int, texts: Sequence[list[int] | array[int]]) -> Encoded:
        """Makes the record of these ids, with many of them as bytes: a million ids as JSON would take 15 ms to write
        and 60 ms to read, in one call each (2026-11).
        """
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
    """The number of the command."""
    text: str
    """The text."""

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
    """The number of the command."""


Alternative = Sequence[float]
"""A token's id and its log probability: a tuple, or a list once it was sent."""
REPETITION = "repetition"
"""The reason of a final: the text repeats itself as SamplingParams.repetition says."""
ABSENT = "absent"
"""The reason of a final without tokens: a beam search has found fewer texts."""
TEXT_PART = 65536
"""Characters of a prompt that are JSON, or one attachment: as JSON a million line breaks took 16 ms to write and 10 ms
to read, in one call each (2026-11)."""
MAX_FRAME_BYTES = 1 << 30
ATTACHED = 1 << 31
_LENGTH = struct.Struct("<I")


# --- front end -> engine -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Load(Record):
    """The first frame: the model to load."""

    config: dict[str, Any]
    """The options of a config.EngineConfig by their names."""
    task: str = ""
    """The name of the model's task; "": text generation."""
    features: list[str] = field(default_factory=list)
    """The names of the features that the process has."""


@dataclass(slots=True)
class Submit(Record):
    """Generates an answer. It gets exactly one Accepted or Refused; then, for each sequence, exactly one last reply."""

    role = COMMAND
    id: int
    """The number of the command."""
    prompt: str | list[int]
    """The text, which the engine tokenizes, or token ids."""
    add_special_tokens: bool
    """Whether the tokenizer adds special tokens to the text."""
    truncate: int | None
    """The number of prompt tokens to keep; None: all."""
    want_tokens: bool
    """Whether Accepted has the ids of the prompt."""
    sampling: dict[str, Any]
    """Fields of types.SamplingParams; the others have their defaults."""
    constraint: str = ""
    """A structural tag (JSON text; grammar.formats) that the answer must match; "" for none. One that is invalid or too
    complex is Refused (errors.GrammarInvalid, GrammarTooComplex); a new one is compiled before Accepted is sent."""
    images: list[list[int]] = field(default_factory=list)
    """The height and the width, in pixels, of each image of the tags in a text prompt."""
    image_times: list[list[float]] = field(default_factory=list)
    """The length of each video and the times of its frames, in seconds; empty for an image."""
    image_params: list[str] = field(default_factory=list)
    """The field of the request that has each of them."""
    image_digests: list[str] = field(default_factory=list)
    """The digest of each of them, "" if it is not computed."""
    client: str = ""
    """Who sends it; clients share the time of the engine."""
    group: int = 0
    """The number of its HTTP request, between which the time of a client is shared; 0: it has one of its own."""
    priority: int = 0
    """The lower one starts first."""
    adapter: str = ""
    """The LoRA adapters as the model's set of adapters writes them, with a name that no others have had; "" for
    none."""
    truncation_side: str = "left"
    """The end from which tokens are left out, "left" or "right"."""
    parts: int = 0
    """The number of `texts`."""
    num_audio: int = 0
    """The number of `audio`."""
    texts: list[bytes] = field(default_factory=list, metadata={"attached": True})
    """A long prompt in UTF-8, in parts; `prompt` is "" on the way."""
    pixels: list[bytes] = field(default_factory=list, metadata={"attached": True})
    """The RGB bytes of each image."""
    audio: list[bytes] = field(default_factory=list, metadata={"attached": True})
    """The samples (types.audio) of each audio tag."""

    def attached(self) -> Iterable[bytes]:
        return [*self.texts, *self.pixels, *self.audio]

    def attach(self, parts: Iterator[bytes]) -> None:
        if self.parts:
            self.prompt = joined(parts, self.parts)
        self.pixels = [next(parts) for _ in self.images]
        self.audio = [next(parts) for _ in range(self.num_audio)]


@dataclass(slots=True)
class Cancel(Record):
    """Stops a request or one sequence of it. Not answered; unknown and finished ids are ignored."""

    role = COMMAND
    id: int
    """The number of the request."""
    index: int | None = None
    """The number of the sequence; None: all of them."""


@dataclass(slots=True)
class Ping(Record):
    """Answered by one Pong, between two steps."""

    role = COMMAND
    id: int
    """The number of the command."""


# --- engine -> front end -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Ready(Record):
    """The model is loaded."""

    info: dict[str, Any]
    """The fields of types.engine.ModelInfo."""
    pieces: list[str]
    """Those of types.engine.Vocabulary, like the following ones; the bytes of each token as a latin-1 string."""
    special: list[int]
    """The ids of special tokens."""
    strip_leading_space: bool
    """Whether a text loses the blank that it begins with."""
    exact: bool
    """Whether the pieces of a text, joined, are the text."""
    clean_up: bool = False
    """Whether blanks before punctuation are removed."""


@dataclass(slots=True)
class LoadFailed(Record):
    """The model does not load; the child exits with status 3 after sending this."""

    message: str
    """Why it does not load."""


@dataclass(slots=True)
class Accepted(Record):
    """The request is valid, and queued or running."""

    id: int
    """The number of the request."""
    prompt_tokens: int
    """The number of prompt tokens."""
    tokens: list[int] | None = None
    """The prompt's ids, if Submit.want_tokens asks for them."""
    notices: list[str] = field(default_factory=list)
    """What of its constraint is not imposed."""


@dataclass(slots=True)
class Refused(Record):
    """The request will not run."""

    id: int
    """The number of the command."""
    error: list[str | None]
    """The error, as errors.RequestError.to_wire writes it."""


@dataclass(slots=True)
class Tokens(Record):
    """New tokens of one sequence of a request."""

    id: int
    """The number of the request."""
    index: int
    """The number of the sequence."""
    tokens: list[int]
    """The ids."""
    logprobs: list[float] | None
    """The natural logarithm of the probability of each token; None: they are not wanted."""
    reason: str | None
    """None, or why the sequence ends with these tokens: "stop", "length", REPETITION or ABSENT."""


@dataclass(slots=True)
class DetailedTokens(Tokens):
    """Tokens with alternatives.

    A record of its own, so that plain tokens have no further field.
    """

    top: list[Sequence[Alternative]] = field(default_factory=list)
    """For each token, [id, log probability] of others in its place."""


@dataclass(slots=True)
class SpokenTokens(Tokens):
    """Tokens of an answer that the model speaks; its final comes after all audio."""

    audio: bytes = field(default=b"", metadata={"attached": True})
    """Samples of 16 bits, little-endian, mono."""

    def attached(self) -> Iterable[bytes]:
        return [self.audio]

    def attach(self, parts: Iterator[bytes]) -> None:
        self.audio = next(parts)


@dataclass(slots=True)
class Counted(Record):
    """The prompt's exact number of tokens, where Accepted had an estimate because of its images."""

    id: int
    """The number of the request."""
    prompt_tokens: int
    """The number of prompt tokens."""


@dataclass(slots=True)
class Prefilled(Record):
    """The prompt is computed; before the first Tokens."""

    id: int
    """The number of the request."""
    cached: int | None
    """The prompt tokens that were found in the prefix cache; None: not known."""
    ms: float
    """The milliseconds since the prompt was begun."""


@dataclass(slots=True)
class Drafted(Record):
    """Each draft of one sequence had so many tokens, of which `accepted` were kept; before its final Tokens."""

    id: int
    tokens: list[int]
    accepted: list[int]


@dataclass(slots=True)
class Progress(Record):
    """Reports how many tokens of a prompt are computed, to requests whose SamplingParams ask for it.

    The last one, with all tokens, comes before the first Tokens.
    """

    id: int
    """The number of the request."""
    tokens: int
    """The tokens that are computed."""
    cached: int
    """Those of them that came from the prefix cache; 0 where the engine does not count them itself."""
    ms: float
    """The milliseconds since the computation of the prompt began."""


@dataclass(slots=True)
class PromptLogprobs(Record):
    """The log probabilities of a prompt's tokens, sent before the first Tokens of the request."""

    id: int
    """The number of the request."""
    logprobs: list[float | None]
    """The log probability of each token; None for the first."""
    ranks: list[int] = field(default_factory=list)
    """The rank of each token but the first, where the engine knows them."""
    top: list[Sequence[Alternative]] = field(default_factory=list)
    """The other tokens in the place of each token but the first, with their log probabilities, where the engine knows
    them."""


@dataclass(slots=True)
class Failed(Record):
    """Ends an accepted request with all its sequences. `error` is what errors.RequestError.to_wire returns."""

    id: int
    error: list[str | None]


@dataclass(slots=True)
class Pong(Record):
    """The answer to a Ping."""

    role = ANSWER
    id: int
    """The number of the command."""
    stats: dict[str, Any]
    """The fields of types.engine.EngineStats."""

    def answer(self) -> dict[str, Any]:
        return self.stats


_RECORDS = (*Record.__subclasses__(), *DataRecord.__subclasses__(), *Tokens.__subclasses__())
CORE_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in _RECORDS if is_dataclass(cls)}
"""The records of the core by their kinds; a task of a feature may have further ones."""


class _Rows(dict[type[Any], Callable[[Any], tuple[Any, ...]]]):
    """The members of a record that its frame has, by the class of the record; a class is added by its first record."""

    def __missing__(self, cls: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
        names = [f.name for f in fields(cls) if "attached" not in f.metadata]
        self[cls] = attrgetter("kind", *names)
        return self[cls]


_ROW = _Rows()


class FrameError(Exception):
    """The other side sent bytes that are not a frame: a bug or a broken child, never a client's fault."""


def encode(records: Iterable[Record]) -> bytes:
    body = orjson.dumps([_ROW[type(r)](r) for r in records])
    return _LENGTH.pack(len(body)) + body


def attachments(records: Iterable[Record]) -> list[bytes]:
    """Returns the parts to write before the frame of these records; their bytes are not copied."""
    return [
        part
        for record in records
        if type(record).attached is not Record.attached
        for data in record.attached()
        for part in (_LENGTH.pack(len(data) | ATTACHED), data)
    ]


class Decoder:
    """Reads records, in their order, of bytes that come in pieces of any size."""

    def __init__(self) -> None:
        self._kinds = dict(CORE_KINDS)
        self._buffer = bytearray()
        self._attached: list[bytes] = []

    def know(self, records: Iterable[type[Any]]) -> None:
        """Understands the records of a task, too."""
        self._kinds |= {cls.kind: cls for cls in records}

    def feed(self, data: bytes) -> list[Record]:
        """Returns the records of every frame that is now complete. Raises FrameError."""
        if not self._buffer and len(data) >= _LENGTH.size and _LENGTH.unpack_from(data)[0] == len(data) - _LENGTH.size:
            return self._parse(memoryview(data)[_LENGTH.size :])  # the usual case: one step, one read; saves 0.4 us
        self._buffer += data
        records, end = self._read(self._buffer)
        del self._buffer[:end]
        return records

    def _read(self, data: bytearray) -> tuple[list[Record], int]:
        """Returns the records of every whole frame, and where the last one ends. Raises FrameError."""
        records: list[Record] = []
        end, whole = 0, len(data)
        with memoryview(data) as view:
            while whole - end >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(data, end)
                start, size, attached = end + _LENGTH.size, size & ~ATTACHED, size & ATTACHED
                if size > MAX_FRAME_BYTES:
                    raise FrameError(f"frame of {size} bytes")
                if whole < start + size:
                    break
                end = start + size
                if attached:
                    self._attached.append(bytes(view[start:end]))
                else:
                    records += self._parse(bytes(view[start:end]))
        return records, end

    def _parse(self, body: bytes | memoryview) -> list[Record]:
        records: list[Record]
        try:
            records = [self._kinds[kind](*values) for kind, *values in orjson.loads(body)]
        except (ValueError, TypeError, KeyError) as error:
            raise FrameError(f"not a frame: {error}") from error
        if self._attached:
            parts, self._attached = iter(self._attached), []
            for record in records:
                try:
                    record.attach(parts)
                except StopIteration:
                    raise FrameError(f"{record.kind} without its attachment") from None
                except UnicodeDecodeError:
                    raise FrameError(f"{record.kind} with an attachment that is no text") from None
            if next(parts, None) is not None:
                raise FrameError("an attachment without a record")
        return records


def changed_fields(kind: type) -> Callable[[Any], dict[str, Any]]:
    """Returns a function that has, of an instance of this dataclass, the values that differ from those of kind().

    By iterators that run in C: a tenth of a loop over forty fields, of which five differ in most requests.
    """
    names = tuple(field.name for field in fields(kind))
    values_of = attrgetter(*names)
    defaults = values_of(kind())

    def changed(instance: Any) -> dict[str, Any]:
        values = values_of(instance)
        return dict(compress(zip(names, values), map(ne, values, defaults)))  # noqa: B905 - as long by their making

    return changed
