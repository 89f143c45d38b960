"""POST …/audio/translations: what is said in an audio file, in English.

https://platform.openai.com/docs/api-reference/audio/createTranslation, OVMS's /v3/audio/translations and vLLM's fields
of the same endpoint.
"""

from __future__ import annotations

from ....speech_types import TRANSLATE
from ....types import Request, Response
from ...route_doc import RouteDoc
from ...services import Services
from . import fields, handler

FIELDS = fields.TRANSLATIONS


@RouteDoc(
    "What is said in an audio file, in English", body=FIELDS, form=True, media=("text/plain", "text/vtt"), stream=True
)
async def handle(request: Request, services: Services) -> Response:
    return await handler.serve(request, services, FIELDS, TRANSLATE)
