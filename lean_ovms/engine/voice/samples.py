"""Audio samples as numbers: another rate, and the bytes that go to the front end."""

from __future__ import annotations

import numpy as np

from ...errors import BadRequest, install_command
from .synthesizer import Samples


def check_rate(rate: int, wanted: int) -> None:
    """Raises BadRequest where speech cannot be resampled."""
    try:
        import soxr  # noqa: F401
    except ImportError:
        if rate != wanted:
            text = f"speech at {wanted} Hz from a model of {rate} Hz needs soxr, which is not installed on this server"
            raise BadRequest(f"{text}: {install_command('audio')}", param="response_format") from None


def resampled(samples: Samples, rate: int, wanted: int) -> Samples:
    """Returns the samples at another rate. Sentences begin and end in silence, so each is resampled alone."""
    if rate == wanted or not samples.size:
        return samples
    import soxr

    found: Samples = soxr.resample(samples, rate, wanted, quality="HQ")
    return found


def to_bytes(samples: Samples) -> bytes:
    """Returns signed 16 bit, little-endian; what is louder than full scale is clipped."""
    return bytes((np.clip(samples, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes())
