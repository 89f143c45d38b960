"""POST …/audio/transcriptions and …/audio/translations: what is said in an audio file, as it is or in English.

https://platform.openai.com/docs/api-reference/audio, OVMS's /v3/audio and vLLM's fields of the same endpoints. A
request of either reads the form, decodes the file, transcribes it and answers.
"""

from __future__ import annotations

from contextlib import aclosing

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
    """Returns the response to a request for a transcription or a translation. Raises RequestError."""
    parsed, audio = await _open(request, services, fields, task)
    if parsed.values["stream"]:
        transcript = Transcript()
        stream = TranscriptionStream(parsed.model.transcribe(audio, parsed.params), audio, transcript)
        await stream.begin(services.config.sse_ping_s)
        return sse.response(stream, TranscriptRenderer(parsed, transcript), services.config.sse_ping_s, parsed.headers)
    return answer(parsed, await collect(parsed, audio))


async def collect(parsed: AudioRequest, audio: AudioStream) -> Transcript:
    """Returns the transcript of these samples, which are closed. Raises RequestError."""
    transcript = Transcript()
    async with aclosing(audio), aclosing(parsed.model.transcribe(audio, parsed.params)) as events:
        async for event in events:
            transcript.add(event)
    transcript.seconds = audio.seconds
    return transcript


async def _open(request: Request, services: Services, fields: FieldSet, task: str) -> tuple[AudioRequest, AudioStream]:
    """Returns the request, and the samples of its file.

    The decoder's process has the file then, and its memory is given back: a transcription takes long.
    """
    work = lambda: parse(body_of(fields, read_form(request)), services, fields, task)  # noqa: E731
    parsed, data = await services.offload_when_known(request.size, work, inline_below=INLINE_BYTES)
    audio = await services.get(AudioDecoder).decode(data)
    del data
    request.drop_body()
    if record := current_record.get():
        record.release_body()
    return parsed, audio
