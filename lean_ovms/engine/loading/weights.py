"""Reads weights in the safetensors format as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ...repository.safetensors import TensorInfo

Floats = NDArray[np.float32]
_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def floats(tensor: TensorInfo) -> Floats:
    """Returns a tensor as floats in its shape. Raises ValueError if the size of the data does not match the shape."""
    values = np.frombuffer(tensor.data, _DTYPES[tensor.kind])
    if tensor.kind == "BF16":
        values = of_bf16(values)
    return values.astype(np.float32).reshape(tensor.shape)


def of_bf16(bits: NDArray[np.uint16]) -> Floats:
    """Converts the bits of bf16 numbers, which are the upper half of float32, to floats."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded_to_bf16(values: Floats) -> NDArray[np.uint16]:
    """Rounds numbers to the nearest bf16, ties to even, and returns their bits."""
    bits = values.view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    return rounded.astype(np.uint16)
