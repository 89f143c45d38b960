"""The records of pooling models between the front end and the engine process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...engine.protocol import ANSWER, COMMAND, PARTIAL, DataRecord, PixelsRecord


@dataclass(slots=True)
class Pool(PixelsRecord):
    """The command to compute inputs, answered by PooledPart records and a last Pooled, or by Refused or Failed."""

    role = COMMAND
    inputs: list[str | list[int]]
    """Texts, which the engine tokenizes, or token ids."""
    queries: list[str | list[int]]
    """The first halves of pairs, of which the inputs are the second: one for each, or one for all; else empty."""
    params: dict[str, Any]
    """The fields of a PoolingParams that differ from their defaults."""
    client: str = ""
    """The name of the client that sends it. Clients share the model fairly."""
    images: list[list[int]] = field(default_factory=list)
    """For each image: the index of its input, in whose text a tag marks the image's place, its height and its width."""
    image_params: list[str] = field(default_factory=list)
    """For each image the name of the request's field that has it, for errors."""
    image_digests: list[str] = field(default_factory=list)
    """The digest of each image; "" if unknown."""
    pixels: list[bytes] = field(default_factory=list, metadata={"attached": True})
    """The pixels of each image, sent as attachments; b"" for one that has the digest of another."""


@dataclass(slots=True)
class PooledPart(DataRecord):
    """The results of some inputs of a Pool command, in any order."""

    role = PARTIAL
    indices: list[int]
    """The indices of the inputs in the command."""
    tokens: list[int]
    """The number of tokens of each input."""
    rows: list[int]
    """The number of rows of each input's result."""
    width: int
    """The length of a row."""
    data: bytes = field(default=b"", metadata={"attached": True})
    """All rows, in the order of the indices: float32, little-endian; sent as an attachment."""


@dataclass(slots=True)
class Pooled(PooledPart):
    """The results of the last inputs of a Pool command, after which no further record follows."""

    role = ANSWER
