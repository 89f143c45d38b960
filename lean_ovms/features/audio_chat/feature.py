"""The manifest of audio in chats."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...config.options import Options, option
from ...manifest import SPOKEN_ANSWERS, ContentRow, Feature, HelperRow, PartRow
from ..media_files.feature import AudioFileOptions, SpokenTextOptions

_model = partial(option, group="model")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class AudioChatOptions(Options):
    """The models that transcribe and speak for text models, and the limits of a request's audio."""

    audio_input_model: str = _model(
        "",
        "name of a served speech2text model that transcribes audio in chats for models that read only text; if "
        "empty, such requests are rejected",
    )
    audio_output_model: str = _model(
        "",
        "name of a served text2speech model that speaks the answers of chats with modalities text and audio; if "
        "empty, such requests are rejected",
    )
    max_audio_parts: int = option(
        32, "maximum number of audio files in one request; more are rejected with 400", group="audio", low=1, high=1024
    )


FEATURE = Feature(
    name="audio_chat",
    summary="reads audio in chat messages, and speaks the answers",
    needs=("media_files", "chat"),
    extra="audio",
    options=AudioChatOptions,
    libraries=(AudioFileOptions, SpokenTextOptions),
    contents=(
        ContentRow(
            kinds=("input_audio", "audio_url"), words=("audio",), modalities=("audio",), reader="content:READER"
        ),
    ),
    parts=(PartRow(seam=SPOKEN_ANSWERS, make="answers:read_answer"),),
    helpers=(
        HelperRow(option="audio_input_model", reads="audio"),
        HelperRow(option="audio_output_model", writes="audio"),
    ),
)
