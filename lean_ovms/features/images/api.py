"""POST …/images/generations, …/images/edits and …/images/variations: images from a text or from another image.

https://platform.openai.com/docs/api-reference/images, .../images-streaming and OVMS's /v3/images.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from ...api import sse
from ...api.fields import FieldSet, RouteDoc
from ...api.response import now, written
from ...api.services import INLINE_BYTES, Services
from ...observability.records import at_end, current_record
from ...types import Image, Json, Request, Response
from ...types.push import Sink, StreamIterator
from ..media_files.images.loader import ImageLoader
from ..media_files.iterated_source import IteratedSource
from ..uploads.forms import body_of, read_form
from .fields import EDITS, GENERATIONS, VARIATIONS, ImageGenerationRequest, parse
from .params import ImageFile, ImageParams


@RouteDoc("Generate images from a text", body=GENERATIONS, stream=True)
async def handle(request: Request, services: Services) -> Response:
    parsed = await services.parse_body(request, partial(parse, GENERATIONS))
    return await _answer(_Images(parsed, [], parsed.images), services)


@RouteDoc("Edit an image as a text describes", body=EDITS, form=True, stream=True)
async def handle_edits(request: Request, services: Services) -> Response:
    return await _edit(request, services, EDITS)


@RouteDoc("Generate variations of an image", body=VARIATIONS, form=True)
async def handle_variations(request: Request, services: Services) -> Response:
    return await _edit(request, services, VARIATIONS)


async def _edit(request: Request, services: Services, fields: FieldSet) -> Response:
    """Serves a request to edit an image. Its body's memory is freed after decoding. Raises RequestError."""
    work = lambda: parse(fields, body_of(fields, read_form(request)), services)  # noqa: E731
    parsed = await services.offload_when_known(request.size, work, inline_below=INLINE_BYTES)
    sources, lease = await services.get(ImageLoader).load(parsed.files)
    parsed.files.clear()
    request.drop_body()
    if record := current_record.get():
        record.release_body()
    at_end(lease.release)
    return await _answer(_Images(parsed, sources, parsed.sized(sources)), services)


@dataclass(frozen=True, slots=True)
class _Images:
    """The source of a request's images, which are generated while they are pushed."""

    parsed: ImageGenerationRequest
    """The request."""
    sources: list[Image]
    """The image to edit and its mask, if there are any."""
    params: list[ImageParams]
    """The parameters of each image to generate."""

    async def push_to(self, sink: Sink[ImageFile]) -> None:
        await self.parsed.model.generate(self.parsed.prompt, self.params, self.sources, sink)


async def _answer(images: _Images, services: Services) -> Response:
    """Returns the response with the images, streamed or whole. Raises RequestError."""
    headers = images.parsed.headers
    if images.parsed.stream:
        source = IteratedSource(_events(images, services))
        await source.begin(services.config.sse_ping_s)
        return sse.response(source, _Renderer(), services.config.sse_ping_s, headers)
    files: list[ImageFile] = []
    await images.push_to(Sink(files.append))

    def answer() -> Json:
        data = [{"b64_json": b64encode(file.data).decode(), "seed": file.params.seed} for file in files]
        return {"created": now(), "data": data, **_form(files[0].params)}

    response = await written(services.offload, sum(len(file.data) for file in files), answer)
    response.headers += headers
    return response


def _form(params: ImageParams) -> Json:
    return {"background": "opaque", "output_format": params.format, "size": f"{params.width}x{params.height}"}


async def _events(images: _Images, services: Services) -> AsyncGenerator[bytes, None]:
    """Yields an event for each file."""
    api = "image_edit" if images.sources else "image_generation"

    def written_event(file: ImageFile) -> bytes:
        kind = f"{api}.completed" if file.partial is None else f"{api}.partial_image"
        number = {} if file.partial is None else {"partial_image_index": file.partial}
        data = {"b64_json": b64encode(file.data).decode(), "seed": file.params.seed, **_form(file.params)}
        return sse.event({"type": kind, "created_at": now(), **number, **data}, kind)

    async with aclosing(StreamIterator(images)) as files:
        async for file in files:
            yield await services.offload.run(len(file.data), partial(written_event, file), inline_below=INLINE_BYTES)


class _Renderer(sse.Renderer[bytes]):
    """A renderer for events that are bytes already."""

    def deltas(self, deltas: list[bytes]) -> bytes:
        return b"".join(deltas)
