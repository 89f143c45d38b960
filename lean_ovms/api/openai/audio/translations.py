"""POST …/audio/translations: what is said in an audio file, in English.

https://platform.openai.com/docs/api-reference/audio/createTranslation, OVMS's /v3/audio/translations and vLLM's fields
of the same endpoint.
"""

from __future__ import annotations

from ....speech_types import TRANSLATE
from ....types import Request, Response
from ...app import App
from ...router import RouteDoc, for_each_prefix
from . import fields, handler

FIELDS = fields.TRANSLATIONS


async def handle(request: Request, app: App) -> Response:
    return await handler.serve(request, app, FIELDS, TRANSLATE)


DOC = RouteDoc(
    summary="What is said in an audio file, in English",
    body=FIELDS,
    form=True,
    answer="Transcription",
    chunks="TranscriptionEvent",
    media=("text/plain", "text/vtt"),
)
ROUTES = for_each_prefix("POST", "/audio/translations", handle, doc=DOC)
