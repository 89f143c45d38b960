"""Transcribing as a method of LLM and AsyncLLM."""

from __future__ import annotations

from functools import partial

from ...api.caller import Caller
from ...types import Json
from ..media_files.audio.decoder import AudioDecoder
from ..uploads.forms import FilePart
from .api.fields import TRANSCRIPTIONS
from .api.request import parse
from .api.transcript import Transcript
from .api.transcriptions import collect
from .params import TRANSCRIBE


async def transcribe(llm: Caller, audio: bytes, fields: Json) -> Transcript:
    """Returns what is said in an audio file.

    Args:
        llm: What reads the fields and has the model.
        audio: The file.
        fields: Fields of a transcription, by their names.

    Raises:
        RequestError: For what is wrong with the file or the fields, or with the engine.
        TypeError: For an unknown field.
    """
    times = {"response_format": "verbose_json"} if fields.get("timestamp_granularities") else {}
    given = {"file": FilePart(memoryview(audio)), **times}
    reader = partial(parse, fields=TRANSCRIPTIONS, task=TRANSCRIBE)
    parsed, file = await llm.read(reader, TRANSCRIPTIONS, given, fields)
    return await collect(parsed, await llm.services.get(AudioDecoder).decode(file))
