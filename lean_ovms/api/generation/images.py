"""Images of a conversation: they are loaded, and tags in the text mark their places.

GenAI inserts the images at the tags, so a client's text must not contain tags or the model's own image tokens: they
would move images to other places. The rules are OVMS's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from ...errors import NO_VIDEO, BadRequest
from ...media.images.loader import ImageLoader, ImageRequest
from ...models.text_model import TextModel
from ...observability.records import current_record
from ...types import IMAGE_TAG, IMAGE_TAG_START, ChatPrompt, Image, Json
from ...util.concurrency import INLINE_CHARACTERS, Offload
from .audio_input import refuse_audio, with_texts

TEXT_ONLY = "This servable supports only text input, but {} has been provided"
_PARTS = "image_url", "video_url"
PLACE = "messages[{message}].content[{part}].{kind}.url"
"""The field of an image, for errors."""


async def load_images(prompt: ChatPrompt, model: TextModel, loader: ImageLoader) -> ChatPrompt:
    """The prompt with its images loaded; a long prompt is searched in a worker thread. Raises RequestError."""
    native = model.image_tokens
    if native is None and not prompt.has_parts:
        return prompt
    videos = native is not None and model.info.video
    search = partial(_find_images, prompt, native, videos=videos, hears=model.hears)
    messages, images = await model.offload.run(prompt.render_cost, search, inline_below=INLINE_CHARACTERS)
    return prompt.with_media(messages, await _load(images, loader, prompt.frames)) if images else prompt


async def load_all_images(
    prompts: Sequence[ChatPrompt], places: Sequence[str], native: list[str], loader: ImageLoader, offload: Offload
) -> list[ChatPrompt]:
    """The prompts of one request with their images loaded, of which it may have as many as a chat. places: see PLACE.

    native: as TextModel.image_tokens. Raises RequestError.
    """

    def search() -> list[tuple[list[Json], list[ImageRequest]]]:
        return [_find_images(prompt, native, place) for prompt, place in zip(prompts, places, strict=True)]

    cost = sum(prompt.render_cost for prompt in prompts)
    found = await offload.run(cost, search, inline_below=INLINE_CHARACTERS)
    images = [image for _, own in found for image in own]
    loaded = iter(await _load(images, loader) if images else ())
    return [
        prompt.with_media(messages, tuple(islice(loaded, len(own)))) if own else prompt
        for prompt, (messages, own) in zip(prompts, found, strict=True)
    ]


async def _load(images: list[ImageRequest], loader: ImageLoader, frames: Json | None = None) -> tuple[Image, ...]:
    """The images, whose pixels count until the client's request ends. Raises RequestError."""
    loaded, lease = await loader.load(images, frames)
    if record := current_record.get():
        record.releases.append(lease.release)
    else:  # not on behalf of a request of a client
        lease.release()
    return tuple([replace(image, param=given.param) for image, given in zip(loaded, images, strict=True)])


def _find_images(
    prompt: ChatPrompt, native: list[str] | None, place: str = PLACE, *, videos: bool = False, hears: bool = False
) -> tuple[list[Json], list[ImageRequest]]:
    """The messages with a tag for each image, and the images. native: as TextModel.image_tokens. Raises BadRequest.

    videos, hears: whether the model reads videos, and audio.
    """
    if not hears:
        refuse_audio(prompt.messages)
    images = list(_image_requests(prompt.messages, place))
    if native is None and images:
        part, kind, _ = images[0].param.rsplit(".", 2)
        raise BadRequest(TEXT_ONLY.format(kind), param=part)
    if not videos and (video := next((image for image in images if image.video), None)) is not None:
        raise BadRequest(NO_VIDEO, param=video.param.removesuffix(".video_url.url"))
    if native is not None:
        _refuse_image_tokens(prompt, native)
    if not images:
        return prompt.messages, images
    tags = map(IMAGE_TAG.format, range(len(images)))
    return [with_texts(message, _PARTS, tags) for message in prompt.messages], images


def refuse_media(messages: list[Json], why: str, place: str = PLACE) -> None:
    """Raises BadRequest if there is audio, or an image. why: not the latter."""
    refuse_audio(messages)
    for image in _image_requests(messages, place):
        raise BadRequest(why, param=image.param)


def _image_requests(messages: list[Json], place: str = PLACE) -> Iterator[ImageRequest]:
    for m, message in enumerate(messages):
        content = message.get("content")
        for p, part in enumerate(content if isinstance(content, list) else ()):
            if (kind := part["type"]) in _PARTS:
                image = part[kind]
                image = {"url": image} if isinstance(image, str) else image
                param, video = place.format(message=m, part=p, kind=kind), kind == "video_url"
                yield ImageRequest(url=image["url"], detail=image.get("detail") or "auto", param=param, video=video)


def _refuse_image_tokens(prompt: ChatPrompt, native: list[str]) -> None:
    """Raises BadRequest if a string that may enter the prompt contains a tag or token that stands for an image."""
    places = {"messages": prompt.messages, "tools": prompt.tools, "chat_template_kwargs": prompt.template_kwargs}
    for place, value in places.items():
        for text in _texts(value):
            if IMAGE_TAG_START in text:
                raise BadRequest("Message contains restricted <ov_genai_image> tag", param=place)
            found = next((token for token in native if token in text), None) if "<" in text else None
            if found is not None:
                what = "audio" if "audio" in found else "an image"
                raise BadRequest(f"Message contains {found}, which stands for {what}", param=place)


def _texts(value: Any) -> Iterator[str]:
    """Every string in a JSON value except URLs of images and videos; iterative, because clients choose the depth."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            stack += value
        elif isinstance(value, dict):
            stack += [*value, *(inner for key, inner in value.items() if key not in _PARTS)]
