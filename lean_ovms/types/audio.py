"""Declares the form of all audio in the package: mono, signed 16 bit, little-endian, SAMPLE_RATE samples a second, in
blocks of any length; and the voices of a model that speaks."""

from __future__ import annotations

from dataclasses import dataclass, field

SAMPLE_RATE = 16_000
"""Samples of a second."""
SAMPLE_BYTES = 2
"""Bytes of a sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceInfo:
    """The properties of a loaded model that speaks, be it the only thing that it does, or a way to answer a chat."""

    sample_rate: int
    """Samples of a second of its audio."""
    voices: list[str] = field(default_factory=list)
    """The names of its voices, the default one first; [] if there is one without a name."""
    languages: list[str] = field(default_factory=list)
    """The codes of its languages; [] if it has no choice."""
    speed: list[float] = field(default_factory=lambda: [1.0, 1.0])
    """The lowest and the highest speed; equal where it has one speed only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakParams:
    """The parameters with which a text is spoken."""

    voice: str = ""
    """One of VoiceInfo's voices; empty: the default."""
    language: str = ""
    """One of VoiceInfo's languages; empty: the default."""
    speed: float = 1.0
    """The speed; 1 is the voice's own."""
    sample_rate: int = 0
    """The samples of a second of the audio; 0: as many as the model makes."""
