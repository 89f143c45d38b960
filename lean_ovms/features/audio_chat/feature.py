"""The manifest of audio in chats."""

from __future__ import annotations

from ...manifest import ContentRow, Feature, HelperRow
from ...media.options import AudioFileOptions
from .options import AudioChatOptions

FEATURE = Feature(
    name="audio_chat",
    summary="hears audio in the messages of a chat, and speaks its answers",
    extra="audio",
    options=AudioChatOptions,
    libraries=(AudioFileOptions,),
    contents=(
        ContentRow(kinds=("input_audio", "audio_url"), words=("audio",), modalities=("audio",), reader="reader:READER"),
    ),
    helpers=(
        HelperRow(option="audio_input_model", reads="audio"),
        HelperRow(option="audio_output_model", writes="audio"),
    ),
)
