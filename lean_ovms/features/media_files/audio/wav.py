"""Reads WAV files without a library: PCM of 8 to 32 bits, float, A-law and mu-law. It runs in the decoder process.

https://www.mmsp.ece.mcgill.ca/Documents/AudioFormats/WAVE/WAVE.html. The sizes in the header of a file that was written
to a pipe are wrong; its samples end with the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import BadRequest

PCM, FLOAT, A_LAW, MU_LAW, EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
BROKEN = "Invalid or unsupported audio file."
BLOCK_S, BLOCK_FRAMES = 4.0, 1 << 18
"""The most seconds and frames of a block: each costs the server the same, whatever its size."""

Samples = NDArray[np.float32]


def block_frames(rate: int) -> int:
    """Returns the number of samples of each channel in a block."""
    return max(1, min(round(rate * BLOCK_S), BLOCK_FRAMES))


class WavFile:
    """A WAV file that is read. Raises BadRequest if it is not valid."""

    def __init__(self, data: bytes | memoryview) -> None:
        chunk, self._body = _chunks(data)
        tag, self.channels, self.rate, _, align, bits = struct.unpack_from("<HHIIHH", chunk)
        """The number of channels, and the samples per second of each."""
        if tag == EXTENSIBLE and len(chunk) >= 26:
            tag = struct.unpack_from("<H", chunk, 24)[0]
        self._kind = (tag, bits)
        if self._kind not in _READERS:
            known = "only PCM of 8 to 32 bits, float, A-law and mu-law"
            raise BadRequest(f"{BROKEN} WAV format {tag} with {bits} bits is not supported, {known}.")
        if not self.channels or align != self.channels * bits // 8:
            raise BadRequest(f"{BROKEN} Its header is wrong.")
        self._align = align
        self._step = block_frames(self.rate)
        self.frames = len(self._body) // align
        """How many frames the file has."""

    def blocks(self) -> Iterator[Samples]:
        """Yields blocks of samples [frames, channels] between -1 and 1."""
        read = _READERS[self._kind]
        for start in range(0, self.frames, self._step):
            count = min(self._step, self.frames - start)
            raw = self._body[start * self._align : (start + count) * self._align]
            yield read(raw).reshape(count, self.channels)

    @property
    def plain(self) -> bool:
        """Whether the samples are 16-bit PCM."""
        return self._kind == (PCM, 16)

    def plain_blocks(self) -> Iterator[memoryview]:
        step = self._step * self._align
        end = self.frames * self._align
        for start in range(0, end, step):
            yield self._body[start : min(start + step, end)]


def _chunks(data: bytes | memoryview) -> tuple[bytes, memoryview]:
    view = memoryview(data)
    place, description = 12, b""
    while place + 8 <= len(view):
        name, size = bytes(view[place : place + 4]), int.from_bytes(view[place + 4 : place + 8], "little")
        start = place + 8
        if name == b"fmt " and not description:
            description = bytes(view[start : start + min(size, 64)])
        if name == b"data":
            if len(description) < 16:
                break
            return description, view[start:] if not size else view[start : start + size]
        place = start + size + size % 2
    raise BadRequest(f"{BROKEN} The WAV file has no samples.")


def _scaled(kind: str, divisor: float, offset: int = 0) -> Any:
    def read(raw: memoryview) -> Samples:
        with np.errstate(over="ignore", invalid="ignore"):  # doubles may be out of range
            found: Samples = (np.frombuffer(raw, kind).astype(np.float32) - np.float32(offset)) / np.float32(divisor)
        return found

    return read


def _read_24(raw: memoryview) -> Samples:
    wide = np.zeros((len(raw) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
    found: Samples = wide.view("<i4")[:, 0].astype(np.float32) / np.float32(1 << 31)
    return found


@cache
def mu_law() -> NDArray[np.int16]:
    """Returns the 14-bit sample for each code of G.711 µ-law."""
    code = ~np.arange(256, dtype=np.uint8)
    exponent, mantissa = ((code >> 4) & 7).astype(np.int32), (code & 15).astype(np.int32)
    magnitude = (((mantissa << 3) + 0x84) << exponent) - 0x84
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)


@cache
def a_law() -> NDArray[np.int16]:
    """Returns the 13-bit sample for each code of G.711 A-law."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    exponent, mantissa = ((code >> 4) & 7).astype(np.int32), (code & 15).astype(np.int32) << 4
    magnitude = np.where(exponent == 0, mantissa + 8, (mantissa + 0x108) << np.maximum(exponent - 1, 0))
    return np.where(code & 0x80, magnitude, -magnitude).astype(np.int16)


def _table(codes: NDArray[np.int16]) -> Any:
    values = codes.astype(np.float32) / np.float32(32768)
    return lambda raw: values[np.frombuffer(raw, np.uint8)]


_READERS: dict[tuple[int, int], Any] = {
    (PCM, 8): _scaled("u1", 128, 128),
    (PCM, 16): _scaled("<i2", 1 << 15),
    (PCM, 24): _read_24,
    (PCM, 32): _scaled("<i4", 1 << 31),
    (FLOAT, 32): _scaled("<f4", 1),
    (FLOAT, 64): _scaled("<f8", 1),
    (A_LAW, 8): _table(a_law()),
    (MU_LAW, 8): _table(mu_law()),
}
"""Functions from bytes to samples between -1 and 1, by format tag and bits."""
