"""The manifest of audio in chats."""

from __future__ import annotations

from ...manifest import SPOKEN_ANSWERS, ContentRow, Feature, HelperRow, PartRow
from ...media.options import AudioFileOptions, SpokenTextOptions
from .options import AudioChatOptions

FEATURE = Feature(
    name="audio_chat",
    summary="hears audio in the messages of a chat, and speaks its answers",
    extra="audio",
    options=AudioChatOptions,
    libraries=(AudioFileOptions, SpokenTextOptions),
    contents=(
        ContentRow(kinds=("input_audio", "audio_url"), words=("audio",), modalities=("audio",), reader="reader:READER"),
    ),
    parts=(PartRow(seam=SPOKEN_ANSWERS, make="answers:read_answer"),),
    helpers=(
        HelperRow(option="audio_input_model", reads="audio"),
        HelperRow(option="audio_output_model", writes="audio"),
    ),
)
