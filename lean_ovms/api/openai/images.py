"""POST …/images/generations, …/images/edits and …/images/variations: images of a text, and of another image.

https://platform.openai.com/docs/api-reference/images and OVMS's /v3/images.
"""

from __future__ import annotations

from base64 import b64encode
from functools import partial

from ...observability.records import current_record
from ...types import Image, Json, Request, Response
from ..fields import FieldSet
from ..forms import body_of, read_form
from ..middleware import release_all
from ..response import now, written
from ..route_doc import RouteDoc
from ..services import INLINE_BYTES, Services
from .image_request import EDITS, GENERATIONS, VARIATIONS, ImageGenerationRequest, parse

FIELDS = GENERATIONS


@RouteDoc("Images of a text", body=GENERATIONS)
async def handle(request: Request, services: Services) -> Response:
    return await _answer(await services.parse_body(request, partial(parse, GENERATIONS)), [], services)


@RouteDoc("Images of a text and an image", body=EDITS, form=True)
async def handle_edits(request: Request, services: Services) -> Response:
    return await _edit(request, services, EDITS)


@RouteDoc("Images like another one", body=VARIATIONS, form=True)
async def handle_variations(request: Request, services: Services) -> Response:
    return await _edit(request, services, VARIATIONS)


async def _edit(request: Request, services: Services, fields: FieldSet) -> Response:
    """Raises RequestError. The body's memory is given back once its images are decoded: an edit takes long."""
    work = lambda: parse(fields, body_of(fields, read_form(request)), services)  # noqa: E731
    asked = await services.offload_when_known(request.size, work, inline_below=INLINE_BYTES)
    images, lease = await services.image_loader.load(asked.files)
    asked.files.clear()
    request.drop_body()
    if record := current_record.get():
        release_all(record)
        record.releases.append(lease.release)
    else:  # not on behalf of a request of a client
        lease.release()
    return await _answer(asked, images, services)


async def _answer(asked: ImageGenerationRequest, sources: list[Image], services: Services) -> Response:
    """Raises RequestError."""
    images = asked.sized(sources)
    files = await asked.model.generate(asked.prompt, images, sources)

    def answer() -> Json:
        data = [
            {"b64_json": b64encode(file).decode(), "seed": params.seed}
            for file, params in zip(files, images, strict=True)
        ]
        size = f"{images[0].width}x{images[0].height}"
        return {"created": now(), "data": data, "output_format": images[0].format, "size": size}

    response = await written(services.offload, sum(map(len, files)), answer)
    response.headers += asked.headers
    return response
