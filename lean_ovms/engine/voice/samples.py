"""Audio samples as numbers: another rate, and the bytes that go to the front end."""

from __future__ import annotations

from math import gcd

import numpy as np

from .synthesizer import Samples

HALF_WIDTH = 16
"""Zero crossings of the low-pass filter on each side."""
MAX_FACTOR = 640
"""Of a rate to the other, reduced: 44,100 and 48,000 need 147 and 160."""


def resampled(samples: Samples, rate: int, wanted: int) -> Samples:
    """At another rate: a windowed sinc (Hann) below the lower of both Nyquist frequencies, one filter per phase.

    Speech of one sentence begins and ends in silence, so that sentences need no common filter state.
    """
    if rate == wanted or not samples.size:
        return samples
    common = gcd(rate, wanted)
    up, down = wanted // common, rate // common
    assert max(up, down) <= MAX_FACTOR, "unusual sample rates"
    half = HALF_WIDTH * max(1, -(-down // up))  # in input samples
    cutoff = min(1.0, up / down)
    places = np.arange(-half, half + 1)
    count = -(-samples.size * up // down)
    at = np.arange(count) * down
    first, phase = at // up, at % up
    offsets = places[None, :] - np.arange(up)[:, None] / up
    filters = cutoff * np.sinc(cutoff * offsets) * np.cos(np.pi * offsets / (2 * half + 2)) ** 2
    padded = np.concatenate([np.zeros(half), samples, np.zeros(half + 1)])
    result = np.empty(count, np.float32)
    for number in range(up):
        mine = np.flatnonzero(phase == number)
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)[first[mine]]
        result[mine] = windows @ filters[number]
    return result


def to_bytes(samples: Samples) -> bytes:
    """Signed 16 bit, little-endian; what is louder than full scale is clipped."""
    return bytes((np.clip(samples, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes())
