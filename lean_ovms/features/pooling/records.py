"""The records of pooling models between the front end and the engine process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...engine.record import ANSWER, COMMAND, PARTIAL, DataRecord, PixelsRecord


@dataclass(slots=True)
class Pool(PixelsRecord):
    """Compute vectors, scores or classes. Answered by PooledPart records and a Pooled with all results, or by one
    Refused or Failed."""

    role = COMMAND
    id: int
    inputs: list[str | list[int]]
    """Texts, which the engine tokenizes, or token ids."""
    queries: list[str | list[int]]
    """The first halves of pairs whose second halves are the inputs: one for each input, or one for all. Empty: the
    inputs are no pairs."""
    params: dict[str, Any]
    """The fields of a PoolingParams that differ from their defaults."""
    images: list[list[int]] = field(default_factory=list)
    """The number of each image's input, in which a tag stands for it, its height and its width."""
    image_params: list[str] = field(default_factory=list)
    """The fields of the request that have the images."""
    pixels: list[bytes] = field(default_factory=list, metadata={"attached": True})
    """The bytes of these images, sent as attachments."""


@dataclass(slots=True)
class PooledPart(DataRecord):
    """Results of some inputs of a Pool, in any order."""

    role = PARTIAL
    id: int
    indices: list[int]
    """The numbers of the inputs."""
    tokens: list[int]
    """The number of tokens of each."""
    rows: list[int]
    """The number of rows of each."""
    width: int
    """The numbers in a row."""
    data: bytes = field(default=b"", metadata={"attached": True})
    """All rows, in the order of the indices: float32, little-endian; sent as an attachment."""


@dataclass(slots=True)
class Pooled(PooledPart):
    """Those of its last inputs."""

    role = ANSWER
