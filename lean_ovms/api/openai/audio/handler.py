"""One request of either endpoint: read the form, decode the file, transcribe, answer."""

from __future__ import annotations

from contextlib import aclosing

from ....media.audio.decoder import AudioDecoder, AudioStream
from ....observability.records import current_record
from ....types import Request, Response
from ... import sse
from ...app import INLINE_BYTES, App
from ...fields import FieldSet
from ...forms import read_form
from ...middleware import release_all
from .answers import answer
from .request import AudioRequest, parse
from .stream import SpeechStream, TranscriptRenderer
from .transcript import Transcript


async def serve(request: Request, app: App, fields: FieldSet, task: str) -> Response:
    """Raises RequestError."""
    asked, audio = await _open(request, app, fields, task)
    transcript = Transcript()
    if asked.stream:
        stream = SpeechStream(asked.model.transcribe(audio, asked.params), audio, transcript)
        try:
            await stream.begin(app.config.sse_ping_s)
        except BaseException:
            await stream.aclose()
            raise
        return sse.response(stream, TranscriptRenderer(asked, transcript), app.config.sse_ping_s, asked.headers)
    async with aclosing(audio), aclosing(asked.model.transcribe(audio, asked.params)) as events:
        async for event in events:
            transcript.add(event)
    transcript.seconds = audio.seconds
    return answer(asked, transcript)


async def _open(request: Request, app: App, fields: FieldSet, task: str) -> tuple[AudioRequest, AudioStream]:
    """The request, and the samples of its file. The decoder's process has the file then, and its memory is given back:
    a transcription takes long."""
    size = request.size
    asked, data = await app.when_known(
        lambda: app.offload.run(size, lambda: parse(read_form(request), app, fields, task), inline_below=INLINE_BYTES)
    )
    audio = await app.service(AudioDecoder).decode(data)
    del data
    request.drop_body()
    if record := current_record.get():
        release_all(record)
    return asked, audio
