"""Reads the quantized blocks of GGUF files as groups of integers with a scale and an offset: number * scale + offset.

A block has 32 or 256 elements of a row, and a group has 16 or 32 of these. Nothing is rounded: minimums become offsets,
and values of lookup tables become the integers. Format: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[Any]
"""Unsigned bytes; numpy's stubs lose their type in arithmetic."""
Floats = NDArray[np.float32]
Parts = tuple[NDArray[np.int8], Floats, "Floats | None"]
"""Whole numbers [blocks, groups, elements], a scale [blocks, groups] for each group, and an offset or none."""
GROUP = 32
"""The elements that have one scale in a matrix that is rounded to 8 bits, where a row needs several."""
EACH_BYTE = 0x0101010101010101
"""The number by which a byte is multiplied to have it in each byte of 64 bits."""
TRIED = 6
"""The number of scales that are tried for a group with an offset, which halves the error of the first one."""
TABLE = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
"""The values of IQ4_NL and IQ4_XS by their 4 bits."""
HALVES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""The values of MXFP4 by their 4 bits, in halves."""


@dataclass(frozen=True, slots=True)
class BlockType:
    """A quantization type of GGUF, and the reader of its blocks."""

    name: str
    """The name of the type."""
    group: int
    """The number of elements that share a scale."""
    bits: int
    """The bits of the integers, 4 or 8."""
    exact: bool
    """Whether the scales are exact as 16-bit floats."""
    offsets: bool
    """Whether the groups have offsets."""
    read: Callable[[Bytes], Parts]
    """Reads blocks [blocks, bytes of a block] as integers, scales and offsets."""


def _float(data: Bytes, at: int) -> Floats:
    """Reads the 16-bit float at a byte offset of each block [blocks, 1]."""
    return data[:, at : at + 2].view(np.float16).astype(np.float32)


def _fields(data: Bytes, bits: int, width: int) -> Bytes:
    """Splits bytes into numbers [n, width * 8 / bits], which are spread over `width` bytes.

    Numpy takes eight bytes at a time as one number, and `width` bytes as one element that it copies: its loops over
    the few bytes of a group would take twice to four times as long.

    Args:
        data: The bytes, of which the last dimension has a multiple of eight.
        bits: The bits of a number.
        width: The bytes whose lowest bits are the first `width` numbers, followed by those of the next bits.
    """
    words, mask = np.ascontiguousarray(data).view(np.uint64), ((1 << bits) - 1) * EACH_BYTE
    fields = [(words >> start & mask).reshape(-1).view(f"V{width}") for start in range(0, 8, bits)]
    return np.stack(fields, -1).view(np.uint8)


def _nibbles(data: Bytes) -> Bytes:
    """Splits rows of bytes into numbers of 4 bits: first the low halves of all bytes of a row, then the high halves."""
    return _fields(data, 4, data.shape[-1]).reshape(*data.shape[:-1], -1)


def in_pairs(values: NDArray[np.int8]) -> NDArray[np.int8]:
    """Packs numbers of 4 bits, two neighbours in a byte, as OpenVINO has them: the first is the lower half."""
    words = np.ascontiguousarray(values).view(np.uint64) & 15 * EACH_BYTE
    return (words | words >> 4).view(np.uint16).astype(np.uint8).view(np.int8)  # the conversion drops the upper byte


def in_eight_bits(parts: Parts, blocks: BlockType, group: int) -> tuple[NDArray[np.int8], Floats]:
    """Requantizes blocks to integers of 8 bits [groups, elements] with scales [groups] and without offsets.

    The error is at most a 200th of the largest value that a group can have. The computation uses fixed-point numbers of
    16 bits with 8 fractional bits.

    Args:
        parts: The integers, scales and offsets of blocks.
        blocks: The type of the blocks.
        group: The number of elements that share a scale: 32, or those of a row.
    """
    numbers, scale, offset = parts
    moved = np.zeros_like(scale) if offset is None else offset
    most, joined = _largest(numbers, scale, offset), group // blocks.group
    fitting = most / 127 if offset is None or joined > 1 else _fitting_steps(scale, offset, most)
    step = fitting.reshape(-1, joined).max(-1)
    inverse = np.divide(256, step, out=np.zeros_like(step), where=step > 0).repeat(joined).reshape(scale.shape)
    found = numbers.astype(np.int16)  # before the product: numpy takes five times as long for two types at once
    found *= np.rint(scale * inverse).astype(np.int16)[..., None]
    found += (np.rint(moved * inverse) + 128).astype(np.int16)[..., None]
    found >>= 8
    return found.astype(np.int8).reshape(-1, group), step


def row_error(parts: Parts, rows: int) -> float:
    """Returns the error of requantizing to 8 bits with one scale per row, relative to the error of the file's type.

    Both errors are root mean squares; rounding to multiples of a step has an error of step / sqrt(12).

    Args:
        parts: The integers of 8 bits, scales and offsets of the blocks of some rows.
        rows: The number of these rows.
    """
    numbers, scale, offset = parts
    steps = _largest(numbers, scale, offset).reshape(rows, -1).max(-1) / 127
    own = float(np.square(scale).mean())
    return math.sqrt(float(np.square(steps).mean()) / own) if own else 0.0


def _largest(numbers: NDArray[np.int8], scale: Floats, offset: Floats | None) -> Floats:
    """Returns the largest absolute value that each group could have, if it had the extreme integers of the tensor."""
    moved = 0 if offset is None else offset
    found: Floats = np.maximum(*(np.abs(int(end) * scale + moved) for end in (numbers.min(), numbers.max())))
    return found


def _fitting_steps(scale: Floats, offset: Floats, most: Floats) -> Floats:
    """Returns a step for each group in 8 bits, so that its scale is a multiple of the step, and its offset nearly one.

    Groups whose scale is less than a few steps get a step of a 127th of their largest value.

    Args:
        scale: The scales of the groups.
        offset: The offsets of the groups.
        most: The largest absolute value that each group can have.
    """
    counts = np.floor(np.divide(126.5 * scale, most, out=np.zeros_like(most), where=most > 0))
    ratio = np.divide(offset, scale, out=np.zeros_like(scale), where=scale > 0)
    best, least = np.maximum(counts, 1), np.full_like(scale, np.inf)
    for fewer in range(TRIED):
        tried = np.maximum(counts - fewer, 1)
        places = tried * ratio
        places -= np.rint(places)
        error = np.abs(places, out=places)
        error /= tried
        np.putmask(best, error < least, tried)
        least = np.minimum(error, least)
    return np.where(counts > TRIED, scale / best, most / 127)


def _fifth_bits(data: Bytes, at: int) -> Bytes:
    """Reads the fifth bit of 32 elements at a byte offset of each block, as 16 or 0."""
    bits = np.unpackbits(data[:, at : at + 4], axis=-1, bitorder="little")
    return bits << 4


def _centred(values: Bytes, scale: Floats, minimum: Floats, middle: int) -> Parts:
    """Returns integers, scales and offsets for values * scale + minimum, with `middle` subtracted from the values."""
    return (values - middle).view(np.int8), scale, minimum + middle * scale


def _q4_0(data: Bytes) -> Parts:
    return (_nibbles(data[:, 2:]) - 8).view(np.int8)[:, None], _float(data, 0), None


def _q4_1(data: Bytes) -> Parts:
    return _centred(_nibbles(data[:, 4:])[:, None], _float(data, 0), _float(data, 2), 8)


def _q5_0(data: Bytes) -> Parts:
    values = _nibbles(data[:, 6:]) | _fifth_bits(data, 2)
    return (values - np.uint8(16)).view(np.int8)[:, None], _float(data, 0), None


def _q5_1(data: Bytes) -> Parts:
    values = _nibbles(data[:, 8:]) | _fifth_bits(data, 4)
    return _centred(values[:, None], _float(data, 0), _float(data, 2), 16)


def _q8_0(data: Bytes) -> Parts:
    return np.ascontiguousarray(data[:, 2:]).view(np.int8)[:, None], _float(data, 0), None


def _mxfp4(data: Bytes) -> Parts:
    return HALVES[_nibbles(data[:, 1:])][:, None], np.ldexp(np.float32(1), data[:, :1].astype(np.int32) - 128), None


def _iq4_nl(data: Bytes) -> Parts:
    return TABLE[_nibbles(data[:, 2:])][:, None], _float(data, 0), None


def _iq4_xs(data: Bytes) -> Parts:
    low = np.stack([data[:, 4:8] & 15, data[:, 4:8] >> 4], -1).reshape(-1, 8)
    high = np.ascontiguousarray(data[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16)
    scale = ((low | (high.astype(np.uint8) & 3) << 4).astype(np.int8) - 32) * _float(data, 0)
    return TABLE[_nibbles(data[:, 8:].reshape(-1, 8, 16))], scale.astype(np.float32), None


def _q2_k(data: Bytes) -> Parts:
    scales = data[:, :16]
    scale, minimum = (scales & 15) * _float(data, 80), (scales >> 4) * -_float(data, 82)
    return _centred(_fields(data[:, 16:80], 2, 32).reshape(-1, 16, 16), scale, minimum, 2)


def _q3_k(data: Bytes) -> Parts:
    packed = data[:, 96:108]
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], -1)
    high = (packed[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    scale = ((low | high.reshape(-1, 16) << 4).astype(np.int8) - 32) * _float(data, 108)
    values = _fields(data[:, 32:96], 2, 32).reshape(-1, 16, 16) + 4 * _fields(data[:, :32], 1, 32).reshape(-1, 16, 16)
    return (values - 4).view(np.int8), scale.astype(np.float32), None


def _six_bits(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Unpacks the scales and the minimums of the 8 groups of Q4_K and Q5_K, 6 bits each, from 12 bytes."""
    first, second, third = np.ascontiguousarray(packed).view(np.uint32).T
    halves = (third & 0x0F0F0F0F | first >> 2 & 0x30303030), (third >> 4 & 0x0F0F0F0F | second >> 2 & 0x30303030)
    lower = first & 0x3F3F3F3F, second & 0x3F3F3F3F
    scale, minimum = (np.stack(both, -1).view(np.uint8) for both in zip(lower, halves, strict=True))
    return scale, minimum


def _q4_k(data: Bytes) -> Parts:
    scale, minimum = _six_bits(data[:, 4:16])
    values = _fields(data[:, 16:], 4, 32).reshape(-1, 8, 32)
    return _centred(values, scale * _float(data, 0), minimum * -_float(data, 2), 8)


def _q5_k(data: Bytes) -> Parts:
    scale, minimum = _six_bits(data[:, 4:16])
    values = (_fields(data[:, 48:], 4, 32) | _fields(data[:, 16:48], 1, 32).reshape(-1, 64) << 4).reshape(-1, 8, 32)
    return _centred(values, scale * _float(data, 0), minimum * -_float(data, 2), 16)


def _q6_k(data: Bytes) -> Parts:
    values = _fields(data[:, :128], 4, 64) | _fields(data[:, 128:192], 2, 32) << 4
    scale = np.ascontiguousarray(data[:, 192:208]).view(np.int8) * _float(data, 208)
    return (values - 32).view(np.int8).reshape(-1, 16, 16), scale, None


BLOCKS = {
    2: BlockType("Q4_0", 32, 4, True, False, _q4_0),
    3: BlockType("Q4_1", 32, 4, True, True, _q4_1),
    6: BlockType("Q5_0", 32, 8, True, False, _q5_0),
    7: BlockType("Q5_1", 32, 8, True, True, _q5_1),
    8: BlockType("Q8_0", 32, 8, True, False, _q8_0),
    10: BlockType("Q2_K", 16, 4, False, True, _q2_k),
    11: BlockType("Q3_K", 16, 4, False, False, _q3_k),
    12: BlockType("Q4_K", 32, 4, False, True, _q4_k),
    13: BlockType("Q5_K", 32, 8, False, True, _q5_k),
    14: BlockType("Q6_K", 16, 8, False, False, _q6_k),
    20: BlockType("IQ4_NL", 32, 8, True, False, _iq4_nl),
    23: BlockType("IQ4_XS", 32, 8, False, False, _iq4_xs),
    39: BlockType("MXFP4", 32, 8, False, False, _mxfp4),
}
"""The types of blocks by their numbers in the file; header.BLOCK_SIZES has their sizes."""
