"""Transcription as a method of LLM and AsyncLLM."""

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
    """Transcribes an audio file.

    Args:
        llm: The LLM, which reads the fields and has the model.
        audio: The bytes of the file.
        fields: Fields of a transcription request, by their names.

    Raises:
        RequestError: The file or a field is not valid, or the engine fails.
        TypeError: A field is unknown.
    """
    times = {"response_format": "verbose_json"} if fields.get("timestamp_granularities") else {}
    given = {"file": FilePart(memoryview(audio)), **times}
    reader = partial(parse, fields=TRANSCRIPTIONS, task=TRANSCRIBE)
    parsed, file = await llm.read(reader, TRANSCRIPTIONS, given, fields)
    return await collect(parsed, await llm.services.get(AudioDecoder).decode(file))
