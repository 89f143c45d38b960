"""POST …/images/generations: images of a text.

https://platform.openai.com/docs/api-reference/images/create and OVMS's /v3/images/generations.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

from ...config import image_size
from ...errors import BadRequest
from ...image_types import ImageParams
from ...models.image_model import ImageModel
from ...observability.logging import safe
from ...types import Json, Request, Response
from ..fields import UINT32_MAX, Field, FieldSet, Values, read
from ..generation import unsupported
from ..response import model_name, now, warning_headers, written
from ..route_doc import RouteDoc
from ..services import Services

MOST_CHARACTERS = 32_000
"""The most characters of a prompt, as at OpenAI. Image models read some hundred tokens and cut the rest."""
SIZE = r"^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})$"
LIMIT = "the limit of this server"


def _prompt(name: str, help_text: str, *, required: bool = False) -> Field:
    def read_text(value: str) -> str:
        if len(value) > MOST_CHARACTERS:
            raise BadRequest(f"{name} has {len(value)} characters, more than {MOST_CHARACTERS}, {LIMIT}", param=name)
        return value

    return Field(name, "string", help_text, read=read_text, required=required, schema={"maxLength": MOST_CHARACTERS})


def _read_size(text: str) -> tuple[int, int] | None:
    try:
        return None if text == "auto" else image_size(text)
    except ValueError as error:
        raise BadRequest(f"size must be auto or {error}", param="size") from None


def _read_response_format(value: str) -> str:
    if value != "b64_json":
        text = f"Unsupported response_format: {safe(value, 40)}. Only b64_json is supported."
        raise BadRequest(text, param="response_format")
    return value


def _read_stream(value: bool) -> bool:
    if value:
        raise BadRequest("images are not streamed; leave out stream", param="stream")
    return value


PIPELINE = FieldSet((
    _prompt("prompt_2", "OVMS's: the prompt of a second text encoder; absent: prompt"),
    _prompt("prompt_3", "OVMS's: the prompt of a third text encoder; absent: prompt"),
    _prompt("negative_prompt", "OVMS's: what the image should not show, for models with guidance"),
    _prompt("negative_prompt_2", "OVMS's: the same for a second text encoder"),
    _prompt("negative_prompt_3", "OVMS's: the same for a third text encoder"),
    Field("guidance_scale", "number", "OVMS's: how closely the prompt is followed; absent: the model's own",
        low=0, high=1000),
    Field("max_sequence_length", "uint", "OVMS's: tokens of a T5 text encoder", low=1, high=512),
))  # fmt: skip
"""Fields that openvino_genai's pipelines have under the same names."""
IGNORED = FieldSet((
    Field("quality", "string", "OpenAI's: no effect"),
    Field("style", "string", "OpenAI's: no effect"),
    Field("background", "string", "OpenAI's: no effect"),
    Field("moderation", "string", "OpenAI's: no effect"),
    Field("partial_images", "uint", "OpenAI's, for streams: no effect"),
    Field("strength", "number", "OVMS's, for edits of images: no effect", low=0, high=1),
))  # fmt: skip
FIELDS = FieldSet((
    Field("model", "string", "name of an image model; may be left out if there is one"),
    _prompt("prompt", "what the images show", required=True),
    Field("n", "uint", "number of images, at most --max_num_images_per_prompt; they are made one after the other",
        low=1),
    Field("num_images_per_prompt", "uint", "OVMS's name of n", low=1),
    Field("size", "string", "WIDTHxHEIGHT within --max_resolution, or auto", read=_read_size,
        schema={"pattern": SIZE}),
    Field("width", "uint", "OVMS's: width in pixels", low=1),
    Field("height", "uint", "OVMS's: height in pixels", low=1),
    Field("num_inference_steps", "uint", "OVMS's: denoising steps, at most --max_num_inference_steps", low=1),
    Field("rng_seed", "uint", "OVMS's: seed of the first image, each further one has the next; absent: a random one",
        high=UINT32_MAX),
    Field("seed", "uint", "another name of rng_seed", high=UINT32_MAX),
    *PIPELINE,
    Field("response_format", "string", "b64_json", read=_read_response_format, schema={"enum": ["b64_json"]}),
    Field("output_format", "string", "png, jpeg or webp", choices=("png", "jpeg", "webp"), default="png"),
    Field("output_compression", "uint", "quality of jpeg and webp in percent", high=100, default=100),
    Field("stream", "bool", "false: images are not streamed", read=_read_stream, schema={"const": False}),
    *IGNORED,
))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageGenerationRequest:
    """A body. images: the parameters of each image."""

    model: ImageModel
    prompt: str
    images: list[ImageParams]
    headers: list[tuple[str, str]]


@RouteDoc("Images of a text", body=FIELDS)
async def handle(request: Request, services: Services) -> Response:
    asked = await services.parse_body(request, parse)
    files = await asked.model.generate(asked.prompt, asked.images)
    first = asked.images[0]

    def answer() -> Json:
        data = [
            {"b64_json": b64encode(file).decode(), "seed": params.seed}
            for file, params in zip(files, asked.images, strict=True)
        ]
        size = f"{first.width}x{first.height}"
        return {"created": now(), "data": data, "output_format": first.format, "size": size}

    response = await written(services.offload, sum(map(len, files)), answer)
    response.headers += asked.headers
    return response


def parse(body: Json, services: Services) -> ImageGenerationRequest:
    """Raises RequestError."""
    values = read(FIELDS, body)
    if not (values["prompt"] or "").strip():
        text = "prompt field is missing in JSON body" if values["prompt"] is None else "prompt is empty"
        raise BadRequest(text, param="prompt")
    registry = services.registry
    name = values["model"] or registry.default_of(ImageModel) or model_name(values)
    model = registry.get(name, ImageModel)
    count = _one_of(values, "n", "num_images_per_prompt") or 1
    _check_limit("n", count, model.config.max_num_images_per_prompt)
    steps = values["num_inference_steps"] or model.config.default_num_inference_steps or model.images.steps
    _check_limit("num_inference_steps", steps, model.config.max_num_inference_steps)
    width, height = _size(values, model)
    seed = _one_of(values, "rng_seed", "seed")
    seed = secrets.randbelow(UINT32_MAX + 1) if seed is None else seed
    more = {name: values[name] for name in PIPELINE.names if values[name] is not None}
    images = [
        ImageParams(
            width=width,
            height=height,
            steps=steps,
            seed=(seed + number) & UINT32_MAX,
            format=values["output_format"],
            compression=values["output_compression"],
            more=more,
        )
        for number in range(count)
    ]
    notices = unsupported.warnings(FIELDS, body)
    ignored = [field.name for field in IGNORED if values[field.name] not in (None, "auto")]
    notices += [f"{name} is not supported and was ignored" for name in ignored]
    return ImageGenerationRequest(model=model, prompt=values["prompt"], images=images, headers=warning_headers(notices))


def _one_of(values: Values, name: str, other: str) -> Any:
    """The value of a field with two names. Raises BadRequest for both."""
    if values[name] is not None and values[other] is not None:
        raise BadRequest(f"{name} and {other} exclude each other", param=other)
    return values[other] if values[name] is None else values[name]


def _check_limit(name: str, value: int, most: int) -> None:
    if value > most:
        raise BadRequest(f"{name} {value} is more than {most}, {LIMIT}", param=name)


def _size(values: Values, model: ImageModel) -> tuple[int, int]:
    """The width and the height. Raises BadRequest."""
    config, given = model.config, values["size"]
    if given is not None and (values["width"] or values["height"]):
        raise BadRequest("size and width or height exclude each other", param="size")
    allowed = [image_size(text) for text in config.resolution.split()]
    default = config.default_resolution or config.resolution.partition(" ")[0]
    width, height = given or (image_size(default) if default else (model.images.width, model.images.height))
    width, height = values["width"] or width, values["height"] or height
    if allowed and (width, height) not in allowed:
        raise BadRequest(f"size {width}x{height} is none of {config.resolution}, {LIMIT}", param="size")
    most_width, most_height = image_size(config.max_resolution)
    if width > most_width or height > most_height:
        raise BadRequest(f"size {width}x{height} is larger than {config.max_resolution}, {LIMIT}", param="size")
    return width, height
