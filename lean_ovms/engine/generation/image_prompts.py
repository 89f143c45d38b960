"""Turns a Submit with images into an ImagePrompt for a pipeline, or raises BadRequest. Independent of openvino.

GenAI checks little: it ignores the number of channels, raises for a tag without an image, and puts images without a tag
before the prompt. So everything is checked here again, independently of the front end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...errors import BadRequest, too_many_characters
from ...types import IMAGE_TAG_START, Image, all_pixels
from ..protocol import Submit

TAG = re.compile(IMAGE_TAG_START + r"(?:image_(\d{1,6})>|audio_(\d{1,6})>)?")
"""Matches the tag of an image or of audio, or the beginning of other text that openvino_genai might read as a tag."""

IMAGE_TOKENS = (
    *("<image>", "</image>", "<img>", "</img>", "<|image|>", "<|image>", "<image|>", "<|image_pad|>", "<|video_pad|>"),
    *("<|vision_pad|>", "<|vision_start|>", "<|vision_end|>", "<image_soft_token>", "<start_of_image>"),
    *("<end_of_image>", "<IMG_CONTEXT>", "<fake_token_around_image>", "<global-img>", "<slice>", "</slice>"),
    *("<image_id>", "</image_id>", "<video>", "<|endoftext10|>"),
    *("<|audio_start|>", "<|audio_pad|>", "<|audio_end|>"),
)
"""The image tokens of the families of models with vision, and the audio tokens of omni models."""


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """A prompt for a model with vision: a text in which <ov_genai_image_0>, ... mark the places of the images."""

    text: str
    """The text."""
    add_special_tokens: bool
    """Whether the tokenizer adds special tokens such as BOS."""
    images: tuple[Image, ...] = ()
    """The images, in the order of their tags' numbers."""
    salt: str = ""
    """The salt of the prefix cache: cached blocks with images are shared only with prompts that have the same salt."""
    audio: tuple[bytes, ...] = ()
    """The samples (types.audio) for the tags <ov_genai_audio_0>, ..."""


def image_tokens(encode: Callable[[str, bool], list[int]]) -> list[str]:
    """Returns the image tokens, as texts, that are single tokens of a model."""
    return [text for text in IMAGE_TOKENS if len(encode(text, False)) == 1]


def parse(submit: Submit, context: int, max_characters: int) -> ImagePrompt:
    """Checks the text, the images and the audio of a prompt, and returns them.

    Args:
        submit: The command with the prompt.
        context: The model's context length in tokens, for the error.
        max_characters: The most characters of the text.

    Raises:
        BadRequest: The prompt is not a text, is empty or too long, or its tags do not match its images and audio.
    """
    text = submit.prompt
    if not isinstance(text, str):
        raise BadRequest("a model with vision does not accept prompts of token ids; send text", param="prompt")
    if not text:
        raise BadRequest("prompt is empty", param="prompt")
    if len(text) > max_characters:
        raise too_many_characters(len(text), context)
    images = _images(submit)
    tags = list(TAG.finditer(text))
    numbers = sorted(int(tag[1] or -1) for tag in tags if not tag[2]), sorted(int(tag[2]) for tag in tags if tag[2])
    if numbers != (list(range(len(images))), list(range(len(submit.audio)))):
        raise BadRequest("the image and audio tags in the prompt do not match its images and audio", param="messages")
    salt = submit.sampling.get("cache_salt", "")
    return ImagePrompt(text, submit.add_special_tokens, images, salt, tuple(submit.audio))


def _images(submit: Submit) -> tuple[Image, ...]:
    if len(submit.images) != len(submit.pixels):
        raise BadRequest("the numbers of images and of their pixels differ", param="messages")
    times = submit.image_times or [[]] * len(submit.images)
    params = submit.image_params or ["messages"] * len(submit.images)
    digests = submit.image_digests or [""] * len(submit.images)
    pixels = all_pixels(digests, submit.pixels)
    return tuple(map(checked_image, submit.images, pixels, params, digests, times))


def checked_image(size: list[int], pixels: bytes, param: str, digest: str = "", video: Sequence[float] = ()) -> Image:
    """Returns an image, or the frames of a video, from the values of a command.

    Args:
        size: The height and the width in pixels.
        pixels: The RGB bytes of each frame, height * width * 3 of them.
        param: The field of the request that has the image, for errors.
        digest: The digest of its content; "" if unknown.
        video: The duration of a video followed by the time of each frame, in seconds; empty for an image.

    Raises:
        BadRequest: The number of pixels does not match the size.
    """
    good = len(size) == 2 and all(type(side) is int and side > 0 for side in size)
    seconds, *times = video or [0.0]
    if not good or len(pixels) != 3 * size[0] * size[1] * (len(times) or 1):
        raise BadRequest("the pixels of an image are not height x width x 3 bytes", param=param)
    return Image(size[0], size[1], pixels, param, digest, tuple(times), seconds)
