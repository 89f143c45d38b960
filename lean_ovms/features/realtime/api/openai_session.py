"""The session object of a transcription session: parses session.update, and renders the object. Pure functions."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from ....api.fields import Field, read_one
from ....errors import BadRequest
from ....types import Json
from ...speech.api.fields import TURNS
from ...speech.params import TurnDetection
from .audio import G711_RATE, AudioFormat
from .settings import LOGPROBS, MAX_KEYWORDS, MAX_PROMPT, Settings, shown

PCM_RATE = 24000
FORMATS = {
    "audio/pcm": AudioFormat("pcm", PCM_RATE),
    "audio/pcmu": AudioFormat("pcmu", G711_RATE),
    "audio/pcma": AudioFormat("pcma", G711_RATE),
}
INPUT = "session.audio.input"
_IDLE = Field("idle_timeout_ms", "int", "", low=5_000, high=30_000)


def defaults(model: str) -> Settings:
    """Returns the settings of a new session."""
    return Settings(model=model, format=FORMATS["audio/pcm"], turns=TurnDetection())


def updated(settings: Settings, session: Any) -> Settings:
    """Returns the settings with the changes of a session object; absent members change nothing. Raises BadRequest."""
    if session is None:
        raise _no_object("session")
    values = _object(session, "session")
    kind = values.get("type")
    if kind not in (None, "transcription"):
        raise _wrong("session.type", kind, "transcription, the only type of session on this server")
    given = _object(_object(values.get("audio"), "session.audio").get("input"), INPUT)
    if given.get("format") is not None:
        settings = replace(settings, format=_format(given["format"]))
    if "transcription" in given:
        settings = _transcription(settings, given["transcription"])
    if "turn_detection" in given:
        turns, idle_ms = _turns(given["turn_detection"])
        settings = replace(settings, turns=turns, idle_timeout_ms=idle_ms)
    if "include" in values:
        settings = replace(settings, logprobs=_includes(values["include"]))
    return settings


def _format(given: Any) -> AudioFormat:
    values = _object(given, f"{INPUT}.format")
    kind = values.get("type")
    if not isinstance(kind, str) or kind not in FORMATS:
        raise _wrong(f"{INPUT}.format.type", kind, ", ".join(FORMATS))
    found = FORMATS[kind]
    rate = values.get("rate")
    if rate is not None and rate != found.rate:
        raise _wrong(f"{INPUT}.format.rate", rate, str(found.rate))
    return found


def _transcription(settings: Settings, given: Any) -> Settings:
    where = f"{INPUT}.transcription"
    values = _object(given, where)
    model = _text(values, "model", where)
    prompt = _text(values, "prompt", where)
    if len(prompt) > MAX_PROMPT:
        raise BadRequest(f"{where}.prompt has more than {MAX_PROMPT} characters", param=f"{where}.prompt")
    languages = _texts(values, "languages", where)
    language = _text(values, "language", where) or (languages[0] if len(languages) == 1 else "")
    hotwords = ", ".join(_texts(values, "keywords", where))
    return replace(settings, model=model or settings.model, language=language, prompt=prompt, hotwords=hotwords)


def _turns(given: Any) -> tuple[TurnDetection | None, int]:
    """Returns the turn detection (None for none) and idle_timeout_ms. Raises BadRequest."""
    if given is None:
        return None, 0
    where = f"{INPUT}.turn_detection"
    values = _object(given, where)
    kind = values.get("type")
    if kind not in (None, "server_vad"):
        raise _wrong(f"{where}.type", kind, "server_vad")
    found: dict[str, Any] = {}
    for field in (*TURNS, _IDLE):
        if values.get(field.name) is not None:
            try:
                found[field.name] = read_one(field, values[field.name])
            except BadRequest as error:
                raise BadRequest(error.message, param=f"{where}.{field.name}", code="invalid_value") from None
    idle_ms: int = found.pop(_IDLE.name, 0)
    return TurnDetection(**found), idle_ms


def _includes(given: Any) -> bool:
    if given is None:
        return False
    allowed = f"[{LOGPROBS!r}]"
    if not isinstance(given, list):
        raise _wrong("session.include", given, allowed)
    for value in given:
        if value != LOGPROBS:
            raise _wrong("session.include", value, allowed)
    return bool(given)


def _object(given: Any, where: str) -> Json:
    """Returns the object in a field; null counts as an empty object. Raises BadRequest."""
    if not isinstance(given, dict | None):
        raise _no_object(where)
    return given or {}


def _no_object(where: str) -> BadRequest:
    return BadRequest(f"{where} is not an object", param=where, code="invalid_type")


def _text(values: Json, name: str, where: str) -> str:
    value = values.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadRequest(f"{where}.{name} is not a string", param=f"{where}.{name}", code="invalid_type")
    return value


def _texts(values: Json, name: str, where: str) -> list[str]:
    given = values.get(name)
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given) or len(given) > MAX_KEYWORDS:
        message = f"{where}.{name} is not a list of at most {MAX_KEYWORDS} strings"
        raise BadRequest(message, param=f"{where}.{name}", code="invalid_type")
    if sum(map(len, given)) > MAX_PROMPT:
        raise BadRequest(f"{where}.{name} has more than {MAX_PROMPT} characters", param=f"{where}.{name}")
    return given


def _wrong(where: str, given: Any, allowed: str) -> BadRequest:
    text = f"Invalid value for {where}: {shown(given)}. Supported: {allowed}"
    return BadRequest(text, param=where, code="invalid_value")


def rendered(settings: Settings, session_id: str, expires_at: int) -> Json:
    """Returns the session object to send to the client."""
    kind = next((name for name, found in FORMATS.items() if found == settings.format), "audio/pcm")
    turns = settings.turns
    return {
        "type": "transcription",
        "object": "realtime.transcription_session",
        "id": session_id,
        "expires_at": expires_at,
        "audio": {
            "input": {
                "format": {"type": kind} | ({"rate": settings.format.rate} if kind == "audio/pcm" else {}),
                "noise_reduction": None,
                "transcription": {
                    "model": settings.model,
                    "language": settings.language or None,
                    "prompt": settings.prompt,
                },
                "turn_detection": None
                if turns is None
                else {
                    "type": "server_vad",
                    **asdict(turns),
                    **({"idle_timeout_ms": settings.idle_timeout_ms} if settings.idle_timeout_ms else {}),
                },
            }
        },
        "include": [LOGPROBS] if settings.logprobs else None,
    }
