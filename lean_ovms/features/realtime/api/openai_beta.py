"""The session object of OpenAI's beta, `transcription_session.update`: to and from that of `session.update`. Pure.

https://platform.openai.com/docs/api-reference/realtime-beta-client-events/transcription_session
"""

from __future__ import annotations

from typing import Any

from ....errors import BadRequest
from ....observability.logging import safe
from ....types import Json

UPDATE, UPDATED = "transcription_session.update", "transcription_session.updated"
FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
_FORMAT, _TRANSCRIPTION = "input_audio_format", "input_audio_transcription"
_TURNS = "turn_detection"


def session_of(given: Any) -> Json:
    """Returns the session object of session.update. Raises BadRequest."""
    if not isinstance(given, dict):
        raise BadRequest("session is not an object", param="session", code="invalid_type")
    found: Json = {_TURNS: given[_TURNS]} if _TURNS in given else {}
    if given.get(_FORMAT) is not None:
        name = given[_FORMAT]
        if not isinstance(name, str) or name not in FORMATS:
            text = f"Invalid value for session.{_FORMAT}: {safe(str(name), 80)!r}. Supported: {', '.join(FORMATS)}"
            raise BadRequest(text, param=f"session.{_FORMAT}", code="invalid_value")
        found["format"] = {"type": FORMATS[name]}
    if _TRANSCRIPTION in given:
        found["transcription"] = given[_TRANSCRIPTION]
    include = {"include": given["include"]} if "include" in given else {}
    return {"type": "transcription", "audio": {"input": found}, **include}


def described(session: Json) -> Json:
    """Returns a rendered session object as the beta's clients read it."""
    given: Json = session["audio"]["input"]
    names = {value: name for name, value in FORMATS.items()}
    return {
        "id": session["id"],
        "object": session["object"],
        "expires_at": session["expires_at"],
        "client_secret": None,
        _FORMAT: names[given["format"]["type"]],
        _TRANSCRIPTION: given["transcription"],
        "input_audio_noise_reduction": given["noise_reduction"],
        _TURNS: given[_TURNS],
        "include": session["include"],
    }
