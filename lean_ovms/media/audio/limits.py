"""What is taken of an audio file. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioLimits:
    """max_s: of the decoded audio. min_rate, max_rate: samples a second, of each channel."""

    max_s: float
    max_channels: int
    min_rate: int
    max_rate: int
