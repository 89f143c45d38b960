"""Reads the names of voices in requests, and returns samples of a voice."""

from __future__ import annotations

from typing import Any

from ...errors import BadRequest
from ...observability.logging import safe
from ...types.audio import VoiceInfo

PCM_RATE = 24_000
"""Samples a second of the format pcm: it has no head that could say so, and OpenAI's clients expect this."""
MOST_NAMED = 24
"""Voices that an error names."""


def read_voice(value: Any) -> str:
    """Returns the name of a voice, for a text or OpenAI's object. Raises BadRequest."""
    name = value.get("id") if isinstance(value, dict) else value
    if not isinstance(name, str):
        raise BadRequest("voice is not a string or an object with an id", param="voice")
    return name


def voice_of(name: str | None, info: VoiceInfo, notices: list[str]) -> str:
    """Returns the model's voice of this name, or "" for its own; a name without effect is noticed. Raises
    BadRequest."""
    if not name:
        return ""
    if not info.voices:
        notices.append("voice has no effect: this model has one")
        return ""
    if name not in info.voices:
        known = ", ".join(info.voices[:MOST_NAMED]) + (", ..." if len(info.voices) > MOST_NAMED else "")
        text = f"Requested voice {safe(name, 80)!r} not found in available voices: {known}"
        raise BadRequest(text, param="voice", code="voice_not_found")
    return name
