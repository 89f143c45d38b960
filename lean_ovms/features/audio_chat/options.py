"""The options of audio in chats."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...config.options import Options, option

_model = partial(option, group="model")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class AudioChatOptions(Options):
    """Which models transcribe and speak for those that read and write text, and how much audio a request may have."""

    audio_input_model: str = _model(
        "",
        "name of a served speech2text model that transcribes audio in conversations, for models that read text; "
        "empty: such requests are refused",
    )
    audio_output_model: str = _model(
        "",
        "name of a served text2speech model that speaks the answers of chats with modalities text and audio; empty: "
        "such requests are refused",
    )
    max_audio_parts: int = option(32, "most audio files in one request; more: 400", group="audio", low=1, high=1024)
