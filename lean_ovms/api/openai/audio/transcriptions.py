"""POST …/audio/transcriptions: what is said in an audio file.

https://platform.openai.com/docs/api-reference/audio/createTranscription, OVMS's /v3/audio/transcriptions and vLLM's
fields of the same endpoint.
"""

from __future__ import annotations

from ....speech_types import TRANSCRIBE
from ....types import Request, Response
from ...route_doc import RouteDoc
from ...services import Services
from . import fields, handler

FIELDS = fields.TRANSCRIPTIONS


@RouteDoc("What is said in an audio file", body=FIELDS, form=True, media=("text/plain", "text/vtt"), stream=True)
async def handle(request: Request, services: Services) -> Response:
    return await handler.serve(request, services, FIELDS, TRANSCRIBE)
