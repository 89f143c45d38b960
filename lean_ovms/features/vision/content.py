"""Loads the images and videos of a conversation, and puts tags for them into the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from ...api.services import Services
from ...errors import NO_VIDEO, BadRequest
from ...models.text_model import TextModel
from ...observability.records import at_end
from ...types import IMAGE_TAG, ChatPrompt, Image, Json
from ...util.concurrency import INLINE_CHARACTERS
from ..chat.content import OF_TOOL, ContentReader, MediaPart, Reads, media_parts, with_texts
from ..media_files.images.loader import ImageLoader, ImageRequest
from ..media_files.uploaded import uploaded

TEXT_ONLY = "This servable supports only text input, but {} has been provided"
LEFT_OUT = "[The tool returned an image, which was left out: this model reads text only]"
"""The text that replaces an image from a tool if the model reads text only."""
NOTICE = "images returned by tools were left out: this model reads text only"
DETAILS = (None, "auto", "low", "high", "original")
KINDS = "image_url", "video_url"
"""The types of chat content parts with an image or a video."""


class ImageContent(ContentReader):
    """Reads the content parts with images and videos."""

    def checked(self, part: Json, param: str) -> Json:
        name = "video_url" if part["type"] == "video_url" else "image_url"
        image, place = part.get(name), f"{param}.{name}"
        detail = image.get("detail") if isinstance(image, dict) else None
        if not isinstance(image, str):  # vLLM and Mistral also accept the URL as a string
            if not isinstance(image, dict):
                raise BadRequest(f"Invalid message structure - content {name} missing", param=place)
            if not isinstance(image.get("url", image.get("file_id")), str):
                raise BadRequest(f"Invalid message structure - {name} does not have url field", param=f"{place}.url")
        elif part["type"] == "input_image":
            detail, name, place = part.get("detail"), "input_image", param
        if detail not in DETAILS:
            raise BadRequest(f"{name}.detail must be one of: auto, low, high, original", param=f"{place}.detail")
        return _of_chat(part) if part["type"] == "input_image" else part

    def refusal(self, found: MediaPart, place: str, why: str) -> BadRequest:
        return BadRequest(why, param=found.field(place))

    async def as_text(
        self, prompt: ChatPrompt, model: TextModel, services: Services, salt: str
    ) -> tuple[ChatPrompt, list[str]]:
        """Returns the prompt with a text in place of each image from a tool, and a notice, if the model reads text
        only.

        Agents let a model look at a file, and repeat the result in all further requests: if it were refused, the
        conversation could not go on. Images from the user are refused by `load`.
        """
        if Reads.of(model).tokens is not None:
            return prompt, []
        cut = partial(_without_images_of_tools, prompt.messages)
        messages = await services.offload.run(prompt.render_cost, cut, inline_below=INLINE_CHARACTERS)
        return (prompt, []) if messages is None else (prompt.with_messages(messages), [NOTICE])

    async def load(
        self, prompts: Sequence[ChatPrompt], places: Sequence[str], reads: Reads, services: Services
    ) -> list[ChatPrompt]:
        def search() -> list[tuple[list[Json], list[ImageRequest]]]:
            return [_find_images(prompt, reads, place) for prompt, place in zip(prompts, places, strict=True)]

        cost = sum(prompt.render_cost for prompt in prompts)
        found = await services.offload.run(cost, search, inline_below=INLINE_CHARACTERS)
        images = [image for _, own in found for image in own]
        loaded = iter(await _load(images, services, prompts[0].frames) if images else ())
        return [
            prompt.with_media(messages, tuple(islice(loaded, len(own))), prompt.audio) if own else prompt
            for prompt, (messages, own) in zip(prompts, found, strict=True)
        ]


READER = ImageContent()


def _of_chat(part: Json) -> Json:
    """Converts an image part of the Responses API to one of chat, since vLLM's chat accepts both."""
    image = part["image_url"]
    detail = {"detail": part["detail"]} if part.get("detail") and isinstance(image, str) else {}
    return {"type": "image_url", "image_url": {"url": image, **detail} if isinstance(image, str) else image}


def _without_images_of_tools(messages: list[Json]) -> list[Json] | None:
    """Returns the messages with texts in place of images from tools; None if there are none."""
    found, changed = list[Json](), False
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            tool = message["role"] == "tool"
            gone = [part["type"] in KINDS and (tool or OF_TOOL in part) for part in content]
            if any(gone):
                text, changed = {"type": "text", "text": LEFT_OUT}, True
                parts = [text if cut else part for part, cut in zip(content, gone, strict=True)]
                message = {**message, "content": parts}
        found.append(message)
    return found if changed else None


async def _load(images: list[ImageRequest], services: Services, frames: Json) -> tuple[Image, ...]:
    """Loads the images. Their pixels count as used until the client's request ends. Raises RequestError.

    Args:
        images: The images to load.
        services: The services of the server.
        frames: The request's settings for the frames of videos.
    """

    async def read_upload(file_id: str, most: int) -> bytes:
        _, data = await uploaded(services, file_id, most, "the image in image_url")
        return data

    loaded, lease = await services.get(ImageLoader).load(images, frames, read_upload)
    at_end(lease.release)
    return tuple([replace(image, param=given.param) for image, given in zip(loaded, images, strict=True)])


def _find_images(prompt: ChatPrompt, reads: Reads, place: str) -> tuple[list[Json], list[ImageRequest]]:
    """Returns the messages with a tag for each image, and the images.

    Args:
        prompt: The conversation.
        reads: The kinds of content that the model reads.
        place: The field of the conversation, for errors.

    Raises:
        BadRequest: The model cannot read one of the images or videos.
    """
    images = [_request(found, place) for found in media_parts(prompt.messages, KINDS)]
    if reads.tokens is None and images:
        part, kind, _ = images[0].param.rsplit(".", 2)
        raise BadRequest(TEXT_ONLY.format(kind), param=part)
    if not reads.videos and (video := next((image for image in images if image.video), None)) is not None:
        raise BadRequest(NO_VIDEO, param=video.param.rsplit(".", 2)[0])
    if not images:
        return prompt.messages, images
    tags = map(IMAGE_TAG.format, range(len(images)))
    return [with_texts(message, KINDS, tags) for message in prompt.messages], images


def _request(found: MediaPart, place: str) -> ImageRequest:
    kind = found.part["type"]
    image = found.part[kind]
    image = {"url": image} if isinstance(image, str) else image
    detail, param = image.get("detail") or "auto", found.field(place)
    named = {"url": image["url"]} if "url" in image else {"file_id": image["file_id"]}
    param = param if "url" in image else param.removesuffix(".url") + ".file_id"
    return ImageRequest(**named, detail=detail, param=param, video=kind == "video_url")
