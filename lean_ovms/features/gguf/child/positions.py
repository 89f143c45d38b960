"""Reads the frequencies of RoPE from a file, and how they are scaled for long texts."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..header import Header
from .tensors import Tensors

Frequencies = NDArray[np.float64]
WRITTEN = {"deepseek2": 0.1, "mistral4": 0.1}
"""The factors by which llama.cpp's converter multiplies YaRN's factor of logarithms, by architecture."""
ATTENTION_FACTOR = "rope.scaling.yarn_attn_factor"


def unscaled(base: float, rotated: int) -> Frequencies:
    """Returns RoPE's frequency of each pair of elements before it is scaled. Raises ValueError for a wrong base.

    Args:
        base: The base, a positive number.
        rotated: The number of a head's elements that are rotated.
    """
    if not 0 < base < math.inf:
        raise ValueError(f"the base of its positions is {base}")
    found: Frequencies = base ** -(np.arange(0, rotated, 2, dtype=np.float64) / rotated)
    return found


def frequencies(header: Header, tensors: Tensors, rotated: int, *, whole_ramp: bool) -> tuple[Frequencies, float]:
    """Returns RoPE's frequency of each pair of elements, and the factor of cosines and sines.

    Args:
        header: The header of a file.
        tensors: Its tensors.
        rotated: The number of a head's elements that are rotated.
        whole_ramp: Whether the ends of YaRN's ramp between scaled and unscaled frequencies are rounded.
    """
    base = header.real("rope.freq_base", 10000.0)
    found = unscaled(base, rotated)
    length = header.number("context_length")
    original = header.number("rope.scaling.original_context_length") or length
    kind = "long" if length > original else "short"
    for name in ("rope_freqs", f"rope_factors_{kind}"):
        if f"{name}.weight" in tensors:
            found = found / tensors.numbers(f"{name}.weight")[: len(found)].astype(np.float64)
    if share := _extrapolated(header):
        return _yarn(header, found, base, whole_ramp, share)
    factor = header.real("rope.scaling.factor", header.real("rope.scale_linear", 1.0))  # the second in old files
    turned = header.real("rope.scaling.attn_factor", 1.0) * header.real(ATTENTION_FACTOR, 1.0)
    return found / (1.0 if header.scaling == "none" else factor), turned


def _extrapolated(header: Header) -> float:
    """Returns the share of high frequencies that YaRN does not scale, by default all of it; 0 without YaRN."""
    share = header.metadata.get(f"{header.architecture}.rope.scaling.yarn_ext_factor")
    if isinstance(share, int | float) and share >= 0:
        return float(share)
    return float(header.scaling == "yarn")


def _yarn(header: Header, found: Frequencies, base: float, whole_ramp: bool, share: float) -> tuple[Frequencies, float]:
    """Scales frequencies by YaRN (arXiv:2309.00071): low ones by the whole factor, and high ones not at all.

    Args:
        header: The header of a file.
        found: The frequencies before they are scaled.
        base: The base of RoPE.
        whole_ramp: Whether the ends of the ramp between scaled and unscaled frequencies are rounded.
        share: The share of high frequencies that is not scaled.
    """
    factor = max(header.real("rope.scaling.factor", 1.0), 1.0)
    original = header.number("rope.scaling.original_context_length") or header.number("context_length")
    betas = header.real("rope.scaling.yarn_beta_fast", 32.0), header.real("rope.scaling.yarn_beta_slow", 1.0)
    pairs = len(found)
    low, high = (pairs * math.log(original / (beta * 2 * math.pi)) / math.log(base) for beta in betas)
    if whole_ramp:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    kept = share * (1 - np.clip((np.arange(pairs) - low) / max(high - low, 0.001), 0, 1))
    less = header.real("rope.scaling.yarn_log_multiplier", 0.0) / WRITTEN.get(header.architecture, 1.0)
    # Models have a multiplier for each of the two logarithms. Files have the second; both are the same in DeepSeek's.
    more = less if less and header.architecture in WRITTEN else 1.0
    logarithm = 0.1 * math.log(factor)
    turned = (logarithm * more + 1) / (logarithm * less + 1)
    if header.real("rope.scaling.yarn_ext_factor", 0.0) >= 0:  # otherwise llama.cpp has written that, and no factor
        turned = header.real(ATTENTION_FACTOR, turned)
    return found / factor * (1 - kept) + found * kept, turned * header.real("rope.scaling.attn_factor", 1.0)
