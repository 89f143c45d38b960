"""The request fields of …/images/generations, edits and variations, and their parsing."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...api.fields import UINT32_MAX, Field, FieldSet, Values, read
from ...api.generation import common_fields
from ...api.generation.sampling import SAMPLING
from ...api.response import warning_headers
from ...api.services import Services
from ...errors import BadRequest
from ...observability.logging import safe
from ...observability.records import current_record
from ...types import Image, Json
from ..media_files.images.loader import ImageRequest
from ..uploads.forms import read_file
from .feature import ImageOptions, image_size
from .model import ImageModel
from .params import ImageParams

MOST_CHARACTERS = 32_000
"""The most characters of a prompt, as at OpenAI. Image models read some hundred tokens and cut the rest."""
SIZE = r"^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})$"
LIMIT = "the limit of this server"
SIDE_STEP = 64
"""The sides of an edited image without a size are multiples of this: what the networks of all families can do."""


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


PIPELINE = FieldSet((
    _prompt("prompt_2", "(OVMS) prompt for the second text encoder; prompt if absent"),
    _prompt("prompt_3", "(OVMS) prompt for the third text encoder; prompt if absent"),
    _prompt("negative_prompt", "(OVMS) what the image should not show, for models with guidance"),
    _prompt("negative_prompt_2", "(OVMS) negative prompt for the second text encoder"),
    _prompt("negative_prompt_3", "(OVMS) negative prompt for the third text encoder"),
    Field("guidance_scale", "number", "(OVMS) how closely the prompt is followed; the model's own value if absent",
        low=0, high=1000),
    Field("max_sequence_length", "uint", "(OVMS) maximum number of tokens for a T5 text encoder", low=1, high=512),
))  # fmt: skip
"""Fields that openvino_genai's pipelines have under the same names."""
STRENGTH = Field(
    "strength",
    "number",
    "(OVMS) how much of the image is changed, up to 1; the model's own value if absent",
    low=0,
    high=1,
)
IGNORED = FieldSet((
    Field("quality", "string", "(OpenAI) accepted without effect"),
    Field("style", "string", "(OpenAI) accepted without effect"),
    Field("background", "string", "(OpenAI) accepted without effect"),
    Field("moderation", "string", "(OpenAI) accepted without effect"),
    Field("complexity", "string", "(OpenAI) accepted without effect; use num_inference_steps"),
))  # fmt: skip
MODEL = Field("model", "string", "name of an image model; optional if only one is served")
SHARED = FieldSet((
    Field("n", "uint", "number of images, at most --max_num_images_per_prompt; they are generated one after the other",
        low=1),
    Field("num_images_per_prompt", "uint", "(OVMS) another name of n", low=1),
    Field("size", "string", "WIDTHxHEIGHT, at most --max_resolution, or auto", read=_read_size,
        schema={"pattern": SIZE}),
    Field("width", "uint", "(OVMS) width in pixels", low=1),
    Field("height", "uint", "(OVMS) height in pixels", low=1),
    Field("num_inference_steps", "uint", "(OVMS) number of denoising steps, at most --max_num_inference_steps", low=1),
    replace(SAMPLING.named("seed"), name="rng_seed", help=
        "(OVMS) seed of the first image, increased by 1 for each further one; random if absent or -1"),
    replace(SAMPLING.named("seed"), help="another name of rng_seed"),
    *PIPELINE,
    Field("response_format", "string", "b64_json", read=_read_response_format, schema={"enum": ["b64_json"]}),
    Field("output_format", "string", "png, jpeg or webp", choices=("png", "jpeg", "webp"), default="png"),
    Field("output_compression", "uint", "quality of jpeg and webp in percent", high=100, default=100),
    *IGNORED,
))  # fmt: skip


STREAM = FieldSet((
    Field("stream", "bool", "send the images as server-sent events", default=False),
    Field("partial_images", "uint",
        "number of unfinished images that a stream sends before each finished one", high=3, default=0),
))  # fmt: skip


def _refuse_markup(_: object) -> None:
    raise BadRequest("a drawing over the image is not supported; use mask", param="markup")


def _file(name: str, help_text: str, *, required: bool = False) -> Field:
    """Returns a field for one file, which OpenAI's clients may send as an array of one."""
    binary = {"type": "string", "format": "binary"}
    return Field(name, "array", help_text, read=partial(read_file, name=name), required=required, schema=binary)


GENERATIONS = FieldSet((
    MODEL,
    _prompt("prompt", "description of the images", required=True),
    *SHARED,
    *STREAM,
    replace(STRENGTH, help="(OVMS) accepted without effect, for edits of images"),
))  # fmt: skip
EDITS = FieldSet((
    MODEL,
    _file("image", "the image to edit, a JPEG, PNG, BMP, GIF or WEBP", required=True),
    _file("mask", "image whose transparent areas are edited, or its white areas if none is transparent"),
    _prompt("prompt", "description of the images", required=True),
    *SHARED,
    *STREAM,
    STRENGTH,
    Field("input_fidelity", "string", "(OpenAI) accepted without effect; use strength"),
    Field("markup", "any", "(OpenAI) refused; use mask", read=_refuse_markup, schema={"not": {}}),
))  # fmt: skip
VARIATIONS = FieldSet(
    (MODEL, replace(EDITS.named("image"), help="image of which variations are generated"), *SHARED, STRENGTH)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageGenerationRequest:
    """A parsed request for images."""

    model: ImageModel
    """The model."""
    prompt: str
    """The description of the images."""
    images: list[ImageParams]
    """The parameters of each image; a width of 0 means the size of the first file."""
    files: list[ImageRequest]
    """The image to edit, if there is one, and its mask."""
    stream: bool
    """Whether each image is sent as an event of a stream."""
    headers: list[tuple[str, str]]
    """The Warning headers of the response."""

    def sized(self, sources: Sequence[Image]) -> list[ImageParams]:
        """Returns each image's parameters, with the size of the source if none is requested. Raises BadRequest."""
        if self.images[0].width:
            return self.images
        width, height = (max(SIDE_STEP, side - side % SIDE_STEP) for side in (sources[0].width, sources[0].height))
        _check_size(width, height, self.model)
        return [replace(one, width=width, height=height) for one in self.images]


def parse(fields: FieldSet, body: Json, services: Services) -> ImageGenerationRequest:
    """Reads the fields of a request for images. Raises RequestError."""
    values = read(fields, body)
    for name in ("prompt", "image"):
        if name in values and values[name] is None:
            in_json = fields is GENERATIONS
            text = f"{name} field is missing in JSON body" if in_json else f"Missing required field: '{name}'"
            raise BadRequest(text, param=name)
    if not values.get("prompt", "-").strip():
        raise BadRequest("prompt is empty", param="prompt")
    model = services.named_model(values, ImageModel)
    files = _files(values, model)
    images, stream = _images(values, model, edits=bool(files)), values.get("stream", False)
    if record := current_record.get():
        record.stream = stream
    ignored = IGNORED.names | {"input_fidelity"} | (set() if files else {STRENGTH.name})
    notices = common_fields.warnings(fields, body)
    notices += [
        f"{field.name} is not supported and was ignored"
        for field in fields
        if field.name in ignored and values[field.name] not in (None, "auto")
    ]
    return ImageGenerationRequest(
        model=model,
        prompt=values.get("prompt", ""),
        images=images,
        files=files,
        stream=stream,
        headers=warning_headers(notices),
    )


def _images(values: Values, model: ImageModel, *, edits: bool) -> list[ImageParams]:
    """Returns the parameters of each image, which differ in their seeds. Raises BadRequest.

    Args:
        values: The values of the fields.
        model: The model, whose options limit the values.
        edits: Whether there is an image to edit.
    """
    options = model.config.of(ImageOptions)
    count = _one_of(values, "n", "num_images_per_prompt") or 1
    _check_limit("n", count, options.max_num_images_per_prompt)
    steps = values["num_inference_steps"] or options.default_num_inference_steps or model.images.steps
    _check_limit("num_inference_steps", steps, options.max_num_inference_steps)
    width, height = _size(values, model, own=edits)
    partial_images = values.get("partial_images", 0)
    if partial_images and not values.get("stream", False):
        raise BadRequest("partial_images requires stream to be true", param="partial_images")
    if values["output_format"] == "png" and values["output_compression"] < 100:
        raise BadRequest("output_compression is not supported for png; use jpeg or webp", param="output_compression")
    seed = _one_of(values, "rng_seed", "seed")
    if seed is None or seed == -1:
        seed = secrets.randbelow(UINT32_MAX + 1)
    names = [*PIPELINE.names, *([STRENGTH.name] if edits else [])]
    first = ImageParams(
        width=width,
        height=height,
        steps=steps,
        seed=seed,
        format=values["output_format"],
        compression=values["output_compression"],
        partial_images=partial_images,
        more={name: values[name] for name in names if values[name] is not None},
    )
    return [replace(first, seed=(seed + number) & UINT32_MAX) for number in range(count)]


def _files(values: Values, model: ImageModel) -> list[ImageRequest]:
    """Returns the files of the image to edit and its mask, if there are any. Raises BadRequest."""
    info, mask = model.images, values.get("mask")
    if "image" not in values:
        if not info.texts:
            raise BadRequest(f"the model {model.name} only edits images with a mask", param="model")
        return []
    if not (info.edits or info.masks):
        raise BadRequest(f"the model {model.name} only generates images from texts", param="image")
    files = [ImageRequest(file=values["image"].data, param="image")]
    if mask is None and not info.edits:
        raise BadRequest(f"the model {model.name} needs a mask to edit images", param="mask")
    if mask is not None:
        if not info.masks:
            raise BadRequest(f"the model {model.name} does not support masks", param="mask")
        files.append(ImageRequest(file=mask.data, param="mask", mask=True))
    return files


def _one_of(values: Values, name: str, other: str) -> Any:
    """Returns the value of a field with two names. Raises BadRequest if both are set."""
    if values[name] is not None and values[other] is not None:
        raise BadRequest(f"{name} and {other} cannot be used together", param=other)
    return values[other] if values[name] is None else values[name]


def _check_limit(name: str, value: int, most: int) -> None:
    if value > most:
        raise BadRequest(f"{name} {value} is more than {most}, {LIMIT}", param=name)


def _size(values: Values, model: ImageModel, *, own: bool) -> tuple[int, int]:
    """Returns the requested width and height, or 0 for both if they are the source image's. Raises BadRequest."""
    options, given = model.config.of(ImageOptions), values["size"]
    if given is not None and (values["width"] or values["height"]):
        raise BadRequest("size and width or height cannot be used together", param="size")
    default = options.default_resolution or options.resolution.partition(" ")[0]
    if own and not (given or values["width"] or values["height"] or default):
        return 0, 0
    width, height = given or (image_size(default) if default else (model.images.width, model.images.height))
    width, height = values["width"] or width, values["height"] or height
    _check_size(width, height, model)
    return width, height


def _check_size(width: int, height: int, model: ImageModel) -> None:
    """Checks a size against the limits of the model. Raises BadRequest."""
    options = model.config.of(ImageOptions)
    if options.resolution and (width, height) not in [image_size(text) for text in options.resolution.split()]:
        raise BadRequest(f"size must be one of: {options.resolution}, {LIMIT}, not {width}x{height}", param="size")
    most_width, most_height = image_size(options.max_resolution)
    if width > most_width or height > most_height:
        raise BadRequest(f"size {width}x{height} is larger than {options.max_resolution}, {LIMIT}", param="size")
