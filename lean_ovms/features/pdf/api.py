"""POST …/pdf/text: returns the text of a PDF file, which is read in a separate process."""

from __future__ import annotations

from ...api.fields import Field, FieldSet, RouteDoc, read, require
from ...api.response import json
from ...api.services import INLINE_BYTES, Services
from ...types import Request, Response
from ..uploads.forms import body_of, read_file, read_form
from .reader import PdfReaders, require_library

FIELDS = FieldSet((
    Field("file", "any", "the PDF file", required=True, read=read_file, schema={"type": "string", "format": "binary"}),
))  # fmt: skip


@RouteDoc("The text of a PDF file", body=FIELDS, form=True, errors=(413, 501))
async def handle(request: Request, services: Services) -> Response:
    require_library()
    form = await services.offload.run(
        request.size, lambda: body_of(FIELDS, read_form(request)), inline_below=INLINE_BYTES
    )
    data = require(FIELDS, read(FIELDS, form))["file"].data
    found = await services.get(PdfReaders).read(data)
    request.drop_body()
    return json(found)
