"""The records that the front end and the engine process exchange, and their framing.

A frame is a little-endian u32 length and that many bytes of JSON: an array of records, each an array [kind, field, ...]
in the order of the dataclass below. One frame carries all records of a step, so a step costs one write and one wake-up
for any number of streams. JSON with orjson was the fastest for frames of tokens (0.44 us with one record, 4.8 us with
64; struct and pickle were slower), and reading it cannot run code.

Pixels, vectors and long prompts are sent as attachments: a length with its highest bit set is followed by raw bytes.
Attachments precede the frame of their records, in the order of the records.

This module converts between bytes and records; it uses neither asyncio nor sockets.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import compress
from operator import attrgetter, ne
from typing import Any, ClassVar

import orjson

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


@dataclass(slots=True)
class NumberedRecord(Record):
    """The base class of records about one request or command, which are all but those of the start of a process."""

    id: int
    """The id of the request or command; in a frame it is the first field."""


class DataRecord(NumberedRecord):
    """The base class of records with one attachment, `data`."""

    data: bytes

    def attached(self) -> Iterable[bytes]:
        return (self.data,)

    def attach(self, parts: Iterator[bytes]) -> None:
        self.data = next(parts)


class PixelsRecord(NumberedRecord):
    """The base class of records with images: `pixels` has an attachment for each, and `images` their properties."""

    images: list[list[int]]
    pixels: list[bytes]

    def attached(self) -> Iterable[bytes]:
        return self.pixels

    def attach(self, parts: Iterator[bytes]) -> None:
        self.pixels = [next(parts) for _ in self.images]


JSON_IDS = 8192
"""The most ids of all texts of an Encode that are sent as JSON."""


def joined(parts: Iterator[bytes], count: int) -> str:
    """Joins a long text from its parts. Raises StopIteration if there are too few."""
    texts: list[str] = []
    for _ in range(count):
        texts.append(next(parts).decode())
    return "".join(texts)


@dataclass(slots=True)
class Encode(NumberedRecord):
    """Asks for the token ids of texts. The answer is one Encoded or Refused."""

    role = COMMAND
    texts: list[str]
    """The texts."""
    add_special_tokens: bool
    """Whether the tokenizer adds special tokens to each text."""
    client: str = ""
    """The name of the client that sends it. Clients take turns."""
    parts: int = 0
    """The number of parts in `data`."""
    data: list[bytes] = field(default_factory=list, metadata={"attached": True})
    """A single long text as parts in UTF-8; `texts` is empty while it is sent."""

    def attached(self) -> Iterable[bytes]:
        return self.data

    def attach(self, parts: Iterator[bytes]) -> None:
        if self.parts:
            self.texts = [joined(parts, self.parts)]


@dataclass(slots=True)
class Decode(NumberedRecord):
    """Asks for the text of token ids from the model's own detokenizer. The answer is one Decoded or Refused."""

    role = COMMAND
    tokens: list[int]
    """The token ids."""
    skip_special_tokens: bool
    """Whether special tokens are left out of the text."""


@dataclass(slots=True)
class Encoded(NumberedRecord):
    """The token ids of each text of an Encode."""

    role = ANSWER
    tokens: list[list[int]]
    """The token ids of each text; empty if they are in `data`."""
    sizes: list[int] = field(default_factory=list)
    """The number of ids of each text, if they are in `data`."""
    data: bytes = field(default=b"", metadata={"attached": True})
    """The ids of all texts as int32 in this machine's byte order, if they are many."""

    @classmethod
    def of(cls, number: int, texts: Sequence[list[int] | array[int]]) -> Encoded:
        """Makes the record of these ids, as bytes if they are many.

        A million ids as JSON would take 15 ms to write and 60 ms to read, in one call each (2026-11).
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
class Decoded(NumberedRecord):
    """The answer to a Decode."""

    role = ANSWER
    text: str
    """The text."""

    def answer(self) -> str:
        return self.text


@dataclass(slots=True)
class ResetPrefixCache(NumberedRecord):
    """Asks the engine to clear the prefix cache. The answer is one PrefixCacheReset or Refused."""

    role = COMMAND
    external: bool = False
    """Whether copies that features keep elsewhere, such as on disk, are removed, too."""


@dataclass(slots=True)
class PrefixCacheReset(NumberedRecord):
    """Reports that the prefix cache is empty."""

    role = ANSWER


Alternative = Sequence[float]
"""A token id with its log probability: a tuple, which becomes a list when sent."""
REPETITION = "repetition"
"""The finish reason of a text that repeats itself, as SamplingParams.repetition defines it."""
ABSENT = "absent"
"""The finish reason of a sequence without tokens, because a beam search found fewer texts than requested."""
TEXT_PART = 65536
"""The number of characters of a prompt that are sent as JSON, or in one attachment: as JSON a million line breaks took
16 ms to write and 10 ms to read, in one call each (2026-11)."""
MAX_FRAME_BYTES = 1 << 30
ATTACHED = 1 << 31
_LENGTH = struct.Struct("<I")


# --- front end -> engine -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Load(Record):
    """The first frame, which says which model to load."""

    config: dict[str, Any]
    """The options of a config.EngineConfig, by name."""
    task: str = ""
    """The name of the model's task; "" for text generation."""
    features: list[str] = field(default_factory=list)
    """The names of the features that the process needs."""


@dataclass(slots=True)
class Submit(NumberedRecord):
    """Asks for a generation, answered by one Accepted or Refused, and then by a final record of each sequence."""

    role = COMMAND
    prompt: str | list[int]
    """A text, which the engine tokenizes, or token ids."""
    add_special_tokens: bool
    """Whether the tokenizer adds special tokens to the text."""
    truncate: int | None
    """The number of prompt tokens to keep; None to keep all."""
    want_tokens: bool
    """Whether Accepted has the token ids of the prompt."""
    sampling: dict[str, Any]
    """The fields of types.SamplingParams that differ from their defaults."""
    constraint: str = ""
    """A structural tag (JSON text; grammar.formats) that the answer must match; "" for none. An invalid or too complex
    one is Refused (errors.GrammarRefused). A new one is compiled before Accepted is sent."""
    images: list[list[int]] = field(default_factory=list)
    """The height and width in pixels of each image whose tag is in a text prompt."""
    image_times: list[list[float]] = field(default_factory=list)
    """The duration of each video followed by the times of its frames, in seconds; empty for an image."""
    image_params: list[str] = field(default_factory=list)
    """The names of the request fields that hold the images."""
    image_digests: list[str] = field(default_factory=list)
    """The digest of each image; "" if unknown."""
    client: str = ""
    """The name of the client that sends it. Clients share the engine's time fairly."""
    group: int = 0
    """The number of the HTTP request, whose prompts share a client's time; 0 if it has only this prompt."""
    priority: int = 0
    """The priority; lower values start first."""
    adapter: str = ""
    """The adapters in the notation of the model's set of adapters, with a name that is never reused; "" for none."""
    truncation_side: str = "left"
    """The end of the prompt at which tokens are cut off, "left" or "right"."""
    parts: int = 0
    """The number of parts in `texts`."""
    num_audio: int = 0
    """The number of items in `audio`."""
    texts: list[bytes] = field(default_factory=list, metadata={"attached": True})
    """A long prompt as parts in UTF-8; `prompt` is "" while it is sent."""
    pixels: list[bytes] = field(default_factory=list, metadata={"attached": True})
    """The RGB bytes of each image; b"" for one that has the digest of another."""
    audio: list[bytes] = field(default_factory=list, metadata={"attached": True})
    """The samples (types.audio) for each audio tag."""

    def attached(self) -> Iterable[bytes]:
        return [*self.texts, *self.pixels, *self.audio]

    def attach(self, parts: Iterator[bytes]) -> None:
        if self.parts:
            self.prompt = joined(parts, self.parts)
        self.pixels = [next(parts) for _ in self.images]
        self.audio = [next(parts) for _ in range(self.num_audio)]


@dataclass(slots=True)
class Cancel(NumberedRecord):
    """Stops a request, or a sequence of it that has tokens. There is no answer; finished ones are ignored."""

    role = COMMAND
    index: int | None = None
    """The index of the sequence; None for all sequences."""


@dataclass(slots=True)
class Ping(NumberedRecord):
    """Asks for a Pong, which is sent between two steps, or during a long one."""

    role = COMMAND


# --- engine -> front end -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Ready(Record):
    """Reports that the model is loaded."""

    info: dict[str, Any]
    """The fields of types.engine.ModelInfo."""
    vocabulary: dict[str, Any]
    """The fields of types.engine.Vocabulary in the form of its `to_wire`."""


@dataclass(slots=True)
class LoadFailed(Record):
    """Reports that the model cannot be loaded. The process exits with status 3 after sending this."""

    message: str
    """The reason."""


@dataclass(slots=True)
class Accepted(NumberedRecord):
    """Reports that a request is valid, and queued or running."""

    prompt_tokens: int
    """The number of prompt tokens."""
    tokens: list[int] | None = None
    """The token ids of the prompt, if Submit.want_tokens is set."""
    notices: list[str] = field(default_factory=list)
    """Warnings about parts of the constraint that are not enforced."""


@dataclass(slots=True)
class Refused(NumberedRecord):
    """Reports that a command failed, or that a request will not run."""

    error: list[Any]
    """The error in the form of errors.RequestError.to_wire."""


@dataclass(slots=True)
class Tokens(NumberedRecord):
    """New tokens of one sequence of a request."""

    index: int
    """The index of the sequence."""
    tokens: list[int]
    """The token ids."""
    logprobs: list[float] | None
    """The natural logarithm of the probability of each token; None if not requested."""
    reason: str | None
    """The finish reason if the sequence ends with these tokens, else None: "stop", "length", REPETITION or ABSENT."""


@dataclass(slots=True)
class DetailedTokens(Tokens):
    """New tokens with alternatives. It is a separate record, so that plain tokens do not carry another field."""

    top: list[Sequence[Alternative]] = field(default_factory=list)
    """For each token, the alternatives as [id, log probability]."""


@dataclass(slots=True)
class SpokenTokens(Tokens):
    """New tokens of an answer that the model also speaks. The final record comes after all audio."""

    audio: bytes = field(default=b"", metadata={"attached": True})
    """The audio samples: 16 bits, little-endian, mono."""

    def attached(self) -> Iterable[bytes]:
        return [self.audio]

    def attach(self, parts: Iterator[bytes]) -> None:
        self.audio = next(parts)


@dataclass(slots=True)
class Counted(NumberedRecord):
    """The exact number of prompt tokens, if Accepted had an estimate because of images."""

    prompt_tokens: int
    """The number of prompt tokens."""


@dataclass(slots=True)
class Prefilled(NumberedRecord):
    """Reports that the prompt is computed; sent before the first Tokens."""

    cached: int | None
    """The number of prompt tokens found in the prefix cache; None if unknown."""
    ms: float
    """The milliseconds since the prefill began."""


@dataclass(slots=True)
class Drafted(NumberedRecord):
    """The numbers of draft tokens and accepted tokens in each draft of one sequence; sent before its final Tokens."""

    tokens: list[int]
    """The number of draft tokens in each draft."""
    accepted: list[int]
    """The number of accepted tokens in each draft."""


@dataclass(slots=True)
class Progress(NumberedRecord):
    """Reports how many prompt tokens are computed, to requests whose SamplingParams ask for it.

    The last one, with all tokens, comes before the first Tokens.
    """

    tokens: int
    """The number of computed tokens."""
    cached: int
    """The number of computed tokens that came from the prefix cache; 0 if the engine does not count them."""
    ms: float
    """The milliseconds since the prefill began."""


@dataclass(slots=True)
class PromptLogprobs(NumberedRecord):
    """The log probabilities of a prompt's tokens, sent before the first Tokens of the request."""

    logprobs: list[float | None]
    """The log probability of each token; None for the first."""
    ranks: list[int] = field(default_factory=list)
    """The rank of each token except the first, if the engine knows them."""
    top: list[Sequence[Alternative]] = field(default_factory=list)
    """The alternatives to each token except the first, with their log probabilities, if the engine knows them."""


@dataclass(slots=True)
class Failed(NumberedRecord):
    """Ends an accepted request and all its sequences. `error` is in the form of errors.RequestError.to_wire."""

    error: list[Any]
    """The error in the form of errors.RequestError.to_wire."""


@dataclass(slots=True)
class Pong(NumberedRecord):
    """The answer to a Ping."""

    role = ANSWER
    stats: dict[str, Any]
    """The fields of types.engine.EngineStats."""

    def answer(self) -> dict[str, Any]:
        return self.stats


_RECORDS: list[type[Record]] = [Load, Ready, LoadFailed, *NumberedRecord.__subclasses__(), *Tokens.__subclasses__()]
CORE_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in _RECORDS if cls not in (DataRecord, PixelsRecord)}
"""The records of the core by their kinds. Tasks of features have further ones."""


class _Rows(dict[type[Any], Callable[[Any], tuple[Any, ...]]]):
    """The function that returns a record's fields for its frame, by class; added at a class's first record."""

    def __missing__(self, cls: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
        names = [f.name for f in fields(cls) if "attached" not in f.metadata]
        self[cls] = attrgetter("kind", *names)
        return self[cls]


_ROW = _Rows()


class FrameError(Exception):
    """Raised if the other side sent bytes that are not a frame: a bug or a broken process, never a client's fault."""


def encode(records: Iterable[Record]) -> bytes:
    body = orjson.dumps([_ROW[type(r)](r) for r in records])
    return _LENGTH.pack(len(body)) + body


def attachments(records: Iterable[Record]) -> list[bytes]:
    """Returns the bytes to write before the frame of these records, without copying the attachments."""
    return [
        part
        for record in records
        if type(record).attached is not Record.attached
        for data in record.attached()
        for part in (_LENGTH.pack(len(data) | ATTACHED), data)
    ]


class Decoder:
    """Decodes records from bytes that arrive in pieces of any size."""

    def __init__(self) -> None:
        self._kinds = dict(CORE_KINDS)
        self._buffer = bytearray()
        self._attached: list[bytes] = []

    def know(self, records: Iterable[type[Any]]) -> None:
        """Adds a task's record classes to those that can be decoded."""
        self._kinds |= {cls.kind: cls for cls in records}

    def feed(self, data: bytes) -> list[Record]:
        """Takes bytes, and returns the records of every frame that is now complete. Raises FrameError."""
        if not self._buffer and len(data) >= _LENGTH.size and _LENGTH.unpack_from(data)[0] == len(data) - _LENGTH.size:
            return self._parse(memoryview(data)[_LENGTH.size :])  # the usual case: one step, one read; saves 0.4 us
        self._buffer += data
        records, end = self._read(self._buffer)
        del self._buffer[:end]
        return records

    def _read(self, data: bytearray) -> tuple[list[Record], int]:
        """Returns the records of all complete frames, and the index after the last frame. Raises FrameError."""
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
                    raise FrameError(f"{record.kind} with an attachment that is not text") from None
            if next(parts, None) is not None:
                raise FrameError("an attachment without a record")
        return records


def changed_fields(kind: type) -> Callable[[Any], dict[str, Any]]:
    """Returns a fast function from an instance of this dataclass to its fields that differ from those of kind()."""
    names = tuple(field.name for field in fields(kind))
    values_of = attrgetter(*names)
    defaults = values_of(kind())

    def changed(instance: Any) -> dict[str, Any]:
        values = values_of(instance)
        return dict(compress(zip(names, values), map(ne, values, defaults)))  # noqa: B905 - both have a value for each name

    return changed
