"""Arithmetic on float32 vectors. It is imported only when needed, as numpy takes 0.1 s and 15 MB."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import orjson

from .types import BITS, INTEGERS

LITTLE = np.dtype("<f4")
NUMPY = orjson.OPT_SERIALIZE_NUMPY
AT_ONCE = 1 << 13
"""Numbers that are written as JSON in one call, 1 ms, for which it holds the interpreter's lock."""
ROWS = 1024
"""The most tokens of a query that are multiplied with all tokens of a document in one call of numpy."""
MAX_INT16 = 32760.0
"""The largest absolute value of a vector that llama.cpp scales to 16-bit integers."""
PAIRS = 256
"""Pairs of vectors in one call of numpy."""
Array = np.ndarray[Any, np.dtype[Any]]


def array(data: bytes, shape: tuple[int, ...]) -> Array:
    """Returns a read-only array on the little-endian float32 bytes."""
    return np.frombuffer(data, LITTLE).reshape(shape)


def json(data: bytes, shape: tuple[int, ...]) -> bytes:
    """Returns a vector, or a matrix, as a JSON list; each number is the shortest decimal of its float32."""
    rows = array(data, shape)
    at_once = max(1, AT_ONCE * len(rows) // max(1, rows.size))
    pieces = (orjson.dumps(rows[at : at + at_once], option=NUMPY)[1:-1] for at in range(0, len(rows), at_once))
    return b"[%b]" % b",".join(pieces)


def sparse_json(data: bytes) -> bytes:
    """Returns a vector as a JSON list of its positive numbers, each an object with its index and its value."""
    values = np.frombuffer(data, LITTLE)
    [places] = np.nonzero(values > 0)
    pairs: list[bytes] = []
    for start in range(0, len(places), AT_ONCE):
        some = places[start : start + AT_ONCE]
        numbers = orjson.dumps(values[some], option=NUMPY)[1:-1].split(b",")
        pairs += [b'{"index":%d,"value":%b}' % pair for pair in zip(some.tolist(), numbers, strict=True)]
    return b"[%b]" % b",".join(pairs)


def packed(data: bytes, dtype: str, *, big_endian: bool) -> bytes:
    """Converts little-endian float32 to bytes of another type: one of encoding.DTYPES, or of INTEGERS."""
    if dtype in INTEGERS:
        return integers(data, dtype).tobytes()
    values = np.frombuffer(data, LITTLE)
    if dtype == "float32":
        numbers = values
    elif dtype == "float16":
        with np.errstate(over="ignore"):  # becomes infinite, as IEEE 754 requires
            numbers = values.astype("<f2")
    elif dtype == "bfloat16":
        numbers = _bfloat16(values)
    else:
        return _fp8(values, *_FP8[dtype]).tobytes()
    return numbers.byteswap().tobytes() if big_endian else numbers.tobytes()


def _bfloat16(values: Array) -> Array:
    """Rounds each float32 to bfloat16, to nearest with ties to even, and returns the bits as uint16."""
    bits = values.view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


_FP8 = {"fp8_e4m3": (4, 3), "fp8_e5m2": (5, 2)}
"""Bits of exponent and fraction (OCP 8-bit floating point, revision 1.0)."""


@cache
def _fp8_table(exponent_bits: int, fraction_bits: int) -> Array:
    """Returns the values of all non-negative finite codes of an 8-bit float type, ascending."""
    codes = np.arange(1 << (exponent_bits + fraction_bits))
    exponent, fraction = codes >> fraction_bits, codes & ((1 << fraction_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    scale = np.exp2(np.maximum(exponent, 1) - bias - fraction_bits)
    values: Array = (fraction + np.where(exponent > 0, 1 << fraction_bits, 0)) * scale
    # E4M3 has one NaN and no infinities; E5M2 has infinities, as in IEEE 754.
    most = 0x7E if exponent_bits == 4 else 0x7B
    return values[: most + 1]


def _fp8(values: Array, exponent_bits: int, fraction_bits: int) -> Array:
    """Converts numbers to codes of an 8-bit float type, rounding ties to even; too large ones become the largest."""
    table = _fp8_table(exponent_bits, fraction_bits)
    middles = (table[:-1] + table[1:]) / 2
    sizes = np.abs(values.astype(np.float64))
    codes = np.searchsorted(middles, sizes)
    inside = np.minimum(codes, len(middles) - 1)
    codes = codes + ((codes < len(middles)) & (middles[inside] == sizes) & (codes % 2 == 1))
    signed: Array = (codes | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)
    return signed


def integers_json(data: bytes, name: str) -> bytes:
    """Returns one vector as a JSON list of integers of a type of INTEGERS."""
    return orjson.dumps(integers(data, name), option=NUMPY)


def integers(data: bytes, name: str) -> Array:
    """Converts one vector to a type of INTEGERS, as in Cohere's API.

    int8: each value of the vector, scaled to length 1, times 127, rounded; uint8: the int8 value plus 128. ubinary: one
    bit per value, set if it is not negative, most significant bit first; binary: the bytes of ubinary minus 128.
    """
    values = np.frombuffer(data, LITTLE)
    if name in BITS:
        bits = np.packbits(values >= 0)
        return bits if name == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    length = max(float(np.linalg.norm(values.astype(np.float64))), 1e-12)
    whole: Array = np.clip(np.rint(values * (127 / length)), -127, 127).astype(np.int16)
    return whole.astype(np.int8) if name == "int8" else (whole + 128).astype(np.uint8)


def cosines(left: list[bytes], right: list[bytes]) -> list[float]:
    """Returns the cosine similarity of each pair, or of a single left vector with each right one; 0 for a zero vector.

    It computes a few hundred pairs at a time, so that other threads get their turns and the float64 copies stay small.
    """
    found: list[float] = []
    for start in range(0, len(right), PAIRS):
        b = _rows(right[start : start + PAIRS])
        a = np.broadcast_to(_rows(left if len(left) == 1 else left[start : start + PAIRS]), b.shape)
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        products = np.einsum("ij,ij->i", a, b)
        found += np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0).tolist()
    return found


def _rows(vectors: list[bytes]) -> Array:
    return np.frombuffer(b"".join(vectors), LITTLE).reshape(len(vectors), -1).astype(np.float64)


def max_sims(pairs: list[tuple[bytes, bytes]], width: int) -> list[float]:
    """Returns the MaxSim score of each pair of a query and a document, each given as rows of `width` numbers.

    A row is the vector of a token. The score is the largest dot product of each row of the query with a row of the
    document, summed over the query.
    """
    found = []
    for query, document in pairs:
        rows, others = array(query, (-1, width)), array(document, (-1, width)).T
        largest = [(rows[at : at + ROWS] @ others).max(axis=1).sum() for at in range(0, len(rows), ROWS)]
        found.append(float(sum(largest)))
    return found


def scaled(data: bytes, norm: int) -> bytes:
    """Divides a vector of little-endian float32 by a norm, as llama.cpp does.

    Args:
        data: The vector.
        norm: The p of a p-norm; 0 for the largest absolute value, which becomes 32760.
    """
    values = np.frombuffer(data, LITTLE).astype(np.float64)
    largest = np.abs(values).max(initial=0.0)
    if largest == 0.0:
        return data
    values /= largest  # so that no power overflows
    size = 1 / MAX_INT16 if norm == 0 else np.power(np.abs(values), norm).sum() ** (1 / norm)
    return (values / size).astype(LITTLE).tobytes()


def mean(vectors: list[bytes], weights: list[int], *, normalize: bool) -> bytes:
    """Returns the weighted mean of vectors as little-endian float32.

    Args:
        vectors: The vectors, of equal length, as little-endian float32.
        weights: The weight of each vector.
        normalize: Whether the mean is scaled to length 1.
    """
    found = np.average(_rows(vectors), axis=0, weights=weights)
    if normalize:
        found = found / max(float(np.linalg.norm(found)), 1e-12)
    return found.astype(LITTLE).tobytes()
