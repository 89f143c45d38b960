"""POST …/audio/transcriptions: what is said in an audio file.

https://platform.openai.com/docs/api-reference/audio/createTranscription, OVMS's /v3/audio/transcriptions and vLLM's
fields of the same endpoint.
"""

from __future__ import annotations

from ....models.speech_model import SpeechModel
from ....speech_types import TRANSCRIBE
from ....types import Request, Response
from ...app import App
from ...router import RouteDoc, for_each_prefix
from . import fields, handler

FIELDS = fields.TRANSCRIPTIONS


async def handle(request: Request, app: App) -> Response:
    return await handler.serve(request, app, FIELDS, TRANSCRIBE)


DOC = RouteDoc(
    summary="What is said in an audio file",
    body=FIELDS,
    form=True,
    answer="Transcription",
    chunks="TranscriptionEvent",
    media=("text/plain", "text/vtt"),
)
ROUTES = for_each_prefix("POST", "/audio/transcriptions", handle, doc=DOC, bare=True)
FOR_MODEL = SpeechModel
