"""The form of all audio in the package, and the voices of a model that speaks.

Audio is mono, signed 16 bit, little-endian, with SAMPLE_RATE samples per second, in blocks of any length.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SAMPLE_RATE = 16_000
"""Samples per second."""
SAMPLE_BYTES = 2
"""Bytes per sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceInfo:
    """The voices of a loaded model that speaks, whether that is its only task or a way of answering a chat."""

    sample_rate: int
    """The samples per second of its audio."""
    voices: list[str] = field(default_factory=list)
    """The names of its voices, the default one first; [] if there is one voice without a name."""
    languages: list[str] = field(default_factory=list)
    """The codes of its languages; [] if there is no choice."""
    speed: list[float] = field(default_factory=lambda: [1.0, 1.0])
    """The lowest and the highest speed; equal if there is only one speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakParams:
    """The parameters for speaking a text."""

    voice: str = ""
    """One of VoiceInfo's voices; empty for the default."""
    language: str = ""
    """One of VoiceInfo's languages; empty for the default."""
    speed: float = 1.0
    """The speed; 1 for the voice's normal speed."""
    sample_rate: int = 0
    """The samples per second of the audio; 0 for those of the model."""
