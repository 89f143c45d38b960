"""POST …/audio/transcriptions and …/audio/translations: the text of an audio file, in its language or in English.

They follow https://platform.openai.com/docs/api-reference/audio and OVMS's /v3/audio, and have vLLM's fields as well. A
request reads the form, decodes the file, transcribes the audio and answers.
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial

from ....api import sse
from ....api.fields import FieldSet, RouteDoc
from ....api.services import INLINE_BYTES, Services
from ....observability.records import current_record
from ....types import Request, Response
from ...media_files.audio.decoder import AudioDecoder, AudioStream
from ...uploads.forms import body_of, read_form
from ..params import TRANSCRIBE, TRANSLATE
from .answers import answer
from .fields import TRANSCRIPTIONS, TRANSLATIONS
from .request import AudioRequest, parse
from .stream import TranscriptionStream, TranscriptRenderer
from .transcript import Transcript

MEDIA = ("text/plain", "text/vtt")


@RouteDoc("Transcribe an audio file", body=TRANSCRIPTIONS, form=True, media=MEDIA, stream=True)
async def handle(request: Request, services: Services) -> Response:
    return await _serve(request, services, TRANSCRIPTIONS, TRANSCRIBE)


@RouteDoc("Translate an audio file to English text", body=TRANSLATIONS, form=True, media=MEDIA, stream=True)
async def handle_translations(request: Request, services: Services) -> Response:
    return await _serve(request, services, TRANSLATIONS, TRANSLATE)


async def _serve(request: Request, services: Services, fields: FieldSet, task: str) -> Response:
    """Serves a request for a transcription or a translation. Raises RequestError."""
    parsed, audio = await _open(request, services, fields, task)
    if parsed.values["stream"]:
        transcript = Transcript()
        stream = TranscriptionStream(parsed.model.transcribe(audio, parsed.params), audio, transcript)
        ping_s = services.config.sse_ping_s
        await stream.begin(ping_s)
        renderer = TranscriptRenderer(parsed, transcript, services.offload)
        return sse.response(stream, renderer, ping_s, parsed.headers, before_end=renderer.before_end)
    found = await collect(parsed, audio)
    return await services.offload.run(found.size, partial(answer, parsed, found), inline_below=INLINE_BYTES)


async def collect(parsed: AudioRequest, audio: AudioStream) -> Transcript:
    """Transcribes a stream of samples to its end, and closes it. Raises RequestError."""
    transcript = Transcript()
    async with aclosing(audio), aclosing(parsed.model.transcribe(audio, parsed.params)) as events:
        async for event in events:
            transcript.add(event)
    transcript.seconds = audio.seconds
    return transcript


async def _open(request: Request, services: Services, fields: FieldSet, task: str) -> tuple[AudioRequest, AudioStream]:
    """Reads a request, and returns it with the stream of its file's samples.

    The file is passed to the decoder process and its memory is freed here, since a transcription takes long.
    """
    work = lambda: parse(body_of(fields, read_form(request)), services, fields, task)  # noqa: E731
    parsed, data = await services.offload_when_known(request.size, work, inline_below=INLINE_BYTES)
    audio = await services.get(AudioDecoder).decode(data)
    del data
    request.drop_body()
    if record := current_record.get():
        record.release_body()
    return parsed, audio
