"""One request of either endpoint: read the form, decode the file, transcribe, answer."""

from __future__ import annotations

from contextlib import aclosing

from ....media.audio.decoder import AudioDecoder, AudioStream
from ....observability.records import current_record
from ....types import Request, Response
from ... import sse
from ...fields import FieldSet
from ...forms import read_form
from ...middleware import release_all
from ...services import INLINE_BYTES, Services
from .answers import answer
from .request import AudioRequest, parse
from .stream import TranscriptionStream, TranscriptRenderer
from .transcript import Transcript


async def serve(request: Request, services: Services, fields: FieldSet, task: str) -> Response:
    """Raises RequestError."""
    asked, audio = await _open(request, services, fields, task)
    transcript = Transcript()
    if asked.stream:
        stream = TranscriptionStream(asked.model.transcribe(audio, asked.params), audio, transcript)
        try:
            await stream.begin(services.config.sse_ping_s)
        except BaseException:
            await stream.aclose()
            raise
        return sse.response(stream, TranscriptRenderer(asked, transcript), services.config.sse_ping_s, asked.headers)
    async with aclosing(audio), aclosing(asked.model.transcribe(audio, asked.params)) as events:
        async for event in events:
            transcript.add(event)
    transcript.seconds = audio.seconds
    return answer(asked, transcript)


async def _open(request: Request, services: Services, fields: FieldSet, task: str) -> tuple[AudioRequest, AudioStream]:
    """The request, and the samples of its file. The decoder's process has the file then, and its memory is given back:
    a transcription takes long."""
    size = request.size
    asked, data = await services.when_known(
        lambda: services.offload.run(
            size, lambda: parse(read_form(request), services, fields, task), inline_below=INLINE_BYTES
        )
    )
    audio = await services.get(AudioDecoder).decode(data)
    del data
    request.drop_body()
    if record := current_record.get():
        release_all(record)
    return asked, audio
