"""The settings of a session in any dialect, and the fields that set them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ....errors import BadRequest
from ....observability.logging import safe
from ...speech.languages import find
from ...speech.params import SpeechInfo, TranscribeParams, TurnDetection
from .audio import AudioFormat

LOGPROBS = "item.input_audio_transcription.logprobs"
"""The value of `include` that asks for log probabilities."""
MAX_PROMPT = 10_000
"""The most characters of a prompt; the model's limit in tokens is lower."""
MAX_KEYWORDS = 256


def shown(value: object) -> str:
    """Returns a value as an error message shows it: of a list or an object, which may be large, only what it is."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return repr(safe(str(value), 80))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a client's session."""

    model: str = ""
    """The name of the model."""
    language: str = ""
    """The code or the name of the language, as the client gave it; empty to detect it."""
    prompt: str = ""
    """The text that precedes the first window, as context for the model."""
    hotwords: str = ""
    """The text that precedes every window, as context for the model."""
    format: AudioFormat = field(default_factory=AudioFormat)
    """The format of the audio."""
    turns: TurnDetection | None = None
    """The settings of detecting utterances; None if the client says where one ends."""
    idle_timeout_ms: int = 0
    """The milliseconds of silence after which the client gets an empty item; 0 for never."""
    joined: bool = False
    """Whether utterances are detected, but their texts are joined to one text between two commits."""
    logprobs: bool = False
    """Whether log probabilities of tokens are requested, if the model reports them."""

    def params(self, info: SpeechInfo, *, partials: bool) -> TranscribeParams:
        """Returns the parameters of a transcription for the engine. Raises BadRequest."""
        turns = self.turns or (TurnDetection() if self.joined else None)
        return TranscribeParams(
            language=_known_language(self.language, info),
            prompt=info.end_of(self.prompt),
            hotwords=info.end_of(self.hotwords),
            logprobs=self.logprobs and "logprobs" in info.capabilities,
            turns=turns,
            partials=partials and turns is not None,
            live=True,
        )


def _known_language(given: str, info: SpeechInfo) -> str:
    """Returns the model's code of a language; "" to detect it. Raises BadRequest."""
    if not given.strip():
        return ""
    code = find(given, info.languages)
    if code:
        return code
    known = ", ".join(info.languages)
    raise BadRequest(f"language must be one of: {known}, not {safe(given, 40)!r}", param="language")
