"""Reads the quantized blocks of GGUF files as groups of integers with a scale and an offset: number * scale + offset.

Scales and integers are read apart, since a network can be compiled before its integers are known.

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
Numbers = NDArray[np.int8]
"""Integers of blocks [blocks, groups, elements]."""
Scales = tuple[Floats, "Floats | None"]
"""A scale for each group [blocks, groups], and an offset for each or none."""
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
    limit: int
    """A bound of the integers, which are from -limit to limit - 1."""
    numbers: Callable[[Bytes], Numbers]
    """Reads the integers of blocks [blocks, bytes of a block]."""
    scales: Callable[[Bytes], Scales]
    """Reads the scales and offsets of blocks [blocks, bytes of a block]."""


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


def eight_bit_steps(scales: Scales, blocks: BlockType, group: int) -> Floats:
    """Returns the scales [groups] of blocks that are requantized to integers of 8 bits without offsets.

    Args:
        scales: The scales and offsets of the blocks.
        blocks: The type of the blocks.
        group: The number of elements that share a scale: 32, or those of a row.
    """
    scale, offset = scales
    most, joined = _largest(scales, blocks), group // blocks.group
    fitting = most / 127 if offset is None or joined > 1 else _fitting_steps(scale, offset, most)
    found: Floats = fitting.reshape(-1, joined).max(-1)
    return found


def in_eight_bits(numbers: Numbers, scales: Scales, step: Floats) -> Numbers:
    """Requantizes blocks to integers of 8 bits [groups, elements].

    The error is at most a 200th of the largest value that a group can have. The computation uses fixed-point numbers of
    16 bits with 8 fractional bits.

    Args:
        numbers: The integers of the blocks.
        scales: The scales and offsets of the blocks.
        step: The new scales [groups], made by `eight_bit_steps`.
    """
    scale, offset = scales
    moved = np.zeros_like(scale) if offset is None else offset
    inverse = np.divide(256, step, out=np.zeros_like(step), where=step > 0)
    inverse = inverse.repeat(scale.size // step.size).reshape(scale.shape)
    found = numbers.astype(np.int16)  # before the product: numpy takes five times as long for two types at once
    found *= np.rint(scale * inverse).astype(np.int16)[..., None]
    found += (np.rint(moved * inverse) + 128).astype(np.int16)[..., None]
    found >>= 8
    return found.astype(np.int8).reshape(step.size, -1)


def row_error(scales: Scales, blocks: BlockType, rows: int) -> float:
    """Returns the error of requantizing to 8 bits with one scale per row, relative to the error of the file's type.

    Both errors are root mean squares; rounding to multiples of a step has an error of step / sqrt(12).

    Args:
        scales: The scales and offsets of the blocks of some rows.
        blocks: The type of the blocks, whose integers have 8 bits.
        rows: The number of these rows.
    """
    steps = _largest(scales, blocks).reshape(rows, -1).max(-1) / 127
    own = float(np.square(scales[0]).mean())
    return math.sqrt(float(np.square(steps).mean()) / own) if own else 0.0


def _largest(scales: Scales, blocks: BlockType) -> Floats:
    """Returns the largest absolute value that each group could have, if it had the extreme integers of its type."""
    scale, offset = scales
    moved = 0 if offset is None else offset
    found: Floats = np.maximum(*(np.abs(end * scale + moved) for end in (-blocks.limit, blocks.limit - 1)))
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


def _plain(at: int) -> Callable[[Bytes], Scales]:
    """Returns a function that reads a scale at a byte offset of each block, without an offset."""
    return lambda data: (_float(data, at), None)


def _lifted(middle: int) -> Callable[[Bytes], Scales]:
    """Returns a function that reads a scale and a minimum at the beginning of each block.

    `middle` was subtracted from the integers, so offsets are larger than the minimums.
    """
    return lambda data: _centred(_float(data, 0), _float(data, 2), middle)


def _centred(scale: Floats, minimum: Floats, middle: int) -> Scales:
    """Returns scales and offsets for integers from which `middle` was subtracted."""
    return scale, minimum + middle * scale


def _signed(values: Bytes, middle: int) -> Numbers:
    """Subtracts `middle` from unsigned integers."""
    found: Numbers = (values - np.uint8(middle)).view(np.int8)
    return found


def _q4_0(data: Bytes) -> Numbers:
    return _signed(_nibbles(data[:, 2:]), 8)[:, None]


def _q4_1(data: Bytes) -> Numbers:
    return _signed(_nibbles(data[:, 4:]), 8)[:, None]


def _q5_0(data: Bytes) -> Numbers:
    return _signed(_nibbles(data[:, 6:]) | _fifth_bits(data, 2), 16)[:, None]


def _q5_1(data: Bytes) -> Numbers:
    return _signed(_nibbles(data[:, 8:]) | _fifth_bits(data, 4), 16)[:, None]


def _q8_0(data: Bytes) -> Numbers:
    return np.ascontiguousarray(data[:, 2:]).view(np.int8)[:, None]


def _mxfp4(data: Bytes) -> Numbers:
    return HALVES[_nibbles(data[:, 1:])][:, None]


def _mxfp4_scales(data: Bytes) -> Scales:
    return np.ldexp(np.float32(1), data[:, :1].astype(np.int32) - 128), None


def _iq4_nl(data: Bytes) -> Numbers:
    return TABLE[_nibbles(data[:, 2:])][:, None]


def _iq4_xs(data: Bytes) -> Numbers:
    return TABLE[_nibbles(data[:, 8:].reshape(-1, 8, 16))]


def _iq4_xs_scales(data: Bytes) -> Scales:
    low = np.stack([data[:, 4:8] & 15, data[:, 4:8] >> 4], -1).reshape(-1, 8)
    high = np.ascontiguousarray(data[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16)
    scale = ((low | (high.astype(np.uint8) & 3) << 4).astype(np.int8) - 32) * _float(data, 0)
    return scale.astype(np.float32), None


def _q2_k(data: Bytes) -> Numbers:
    return _signed(_fields(data[:, 16:80], 2, 32).reshape(-1, 16, 16), 2)


def _q2_k_scales(data: Bytes) -> Scales:
    scales = data[:, :16]
    return _centred((scales & 15) * _float(data, 80), (scales >> 4) * -_float(data, 82), 2)


def _q3_k(data: Bytes) -> Numbers:
    values = _fields(data[:, 32:96], 2, 32).reshape(-1, 16, 16) + 4 * _fields(data[:, :32], 1, 32).reshape(-1, 16, 16)
    return _signed(values, 4)


def _q3_k_scales(data: Bytes) -> Scales:
    packed = data[:, 96:108]
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], -1)
    high = (packed[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    scale = ((low | high.reshape(-1, 16) << 4).astype(np.int8) - 32) * _float(data, 108)
    return scale.astype(np.float32), None


def _q4_k(data: Bytes) -> Numbers:
    return _signed(_fields(data[:, 16:], 4, 32).reshape(-1, 8, 32), 8)


def _q5_k(data: Bytes) -> Numbers:
    values = (_fields(data[:, 48:], 4, 32) | _fields(data[:, 16:48], 1, 32).reshape(-1, 64) << 4).reshape(-1, 8, 32)
    return _signed(values, 16)


def _eight_scales(middle: int) -> Callable[[Bytes], Scales]:
    """Returns a function that reads the scales and minimums of the 8 groups of Q4_K and Q5_K, 6 bits each.

    `middle` was subtracted from the integers.
    """

    def read(data: Bytes) -> Scales:
        first, second, third = np.ascontiguousarray(data[:, 4:16]).view(np.uint32).T
        halves = (third & 0x0F0F0F0F | first >> 2 & 0x30303030), (third >> 4 & 0x0F0F0F0F | second >> 2 & 0x30303030)
        lower = first & 0x3F3F3F3F, second & 0x3F3F3F3F
        scale, minimum = (np.stack(both, -1).view(np.uint8) for both in zip(lower, halves, strict=True))
        return _centred(scale * _float(data, 0), minimum * -_float(data, 2), middle)

    return read


def _q6_k(data: Bytes) -> Numbers:
    values = _fields(data[:, :128], 4, 64) | _fields(data[:, 128:192], 2, 32) << 4
    return _signed(values, 32).reshape(-1, 16, 16)


def _q6_k_scales(data: Bytes) -> Scales:
    return np.ascontiguousarray(data[:, 192:208]).view(np.int8) * _float(data, 208), None


BLOCKS = {
    2: BlockType("Q4_0", 32, 4, True, False, 8, _q4_0, _plain(0)),
    3: BlockType("Q4_1", 32, 4, True, True, 8, _q4_1, _lifted(8)),
    6: BlockType("Q5_0", 32, 8, True, False, 16, _q5_0, _plain(0)),
    7: BlockType("Q5_1", 32, 8, True, True, 16, _q5_1, _lifted(16)),
    8: BlockType("Q8_0", 32, 8, True, False, 128, _q8_0, _plain(0)),
    10: BlockType("Q2_K", 16, 4, False, True, 2, _q2_k, _q2_k_scales),
    11: BlockType("Q3_K", 16, 4, False, False, 4, _q3_k, _q3_k_scales),
    12: BlockType("Q4_K", 32, 4, False, True, 8, _q4_k, _eight_scales(8)),
    13: BlockType("Q5_K", 32, 8, False, True, 16, _q5_k, _eight_scales(16)),
    14: BlockType("Q6_K", 16, 8, False, False, 32, _q6_k, _q6_k_scales),
    20: BlockType("IQ4_NL", 32, 8, True, False, 128, _iq4_nl, _plain(0)),
    23: BlockType("IQ4_XS", 32, 8, False, False, 128, _iq4_xs, _iq4_xs_scales),
    39: BlockType("MXFP4", 32, 8, False, False, 16, _mxfp4, _mxfp4_scales),
}
"""The types of blocks by their numbers in the file; header.BLOCK_SIZES has their sizes."""
