"""Handles the images of one model's prompts, which become image tokens and their embeddings."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ....config import EngineConfig
from ....engine.generation import image_prompts
from ....engine.generation.fair_queue import GenerationRequest
from ....engine.generation.image_prompts import TAG, ImagePrompt
from ....engine.loading.settings import PipelineSettings
from ....engine.paged.engine import ModelTokenizer
from ....engine.paged.network import NotPageable, Places, VisionFile
from ....engine.protocol import Submit
from ....errors import BadRequest
from ....types import Image
from ..feature import VisionOptions
from . import families
from .family import Files, Layout, Part, VideoFamily, VisionFamily
from .image_cache import ImageCache, KnownImage
from .image_queue import ImageQueue
from .networks import VisionNetworks
from .prompt_images import PromptImages

TRIAL_SIDE = 64
"""The side of the first image in pixels. With a first image of one patch, OpenVINO (2026.4) computes NaN in bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptParts(ImagePrompt):
    """A prompt whose images and videos have been divided into parts. `images` has the images of all parts."""

    parts: list[list[Part]]
    """The parts of each image or video, by its index in the request."""


class Vision:
    """An `engine.paged.parts.InputEmbeddings` for one model that reads images."""

    takes_ids = True

    def __init__(
        self,
        family: VisionFamily,
        encode: Callable[[str, bool], list[int]],
        decode: Callable[[list[int], bool], str],
        *,
        cache_bytes: int,
        shares: bool,
        wake: Callable[[], None],
    ) -> None:
        """Encodes a small image to test the networks.

        Args:
            family: Encodes images.
            encode: Returns the token ids of a text, with or without special tokens.
            decode: Returns the text of token ids, with or without special tokens.
            cache_bytes: The most bytes of embeddings to keep.
            shares: Whether requests with the same salt share embeddings.
            wake: Wakes up the engine's loop. It is called from the thread that encodes.

        Raises:
            families.NotReadable: The model's files do not match its family.
        """
        self._shares = shares
        self._numbers = itertools.count()
        self._family = family
        self._encode = encode
        self._cache = ImageCache(family, cache_bytes)
        self.queue = ImageQueue(family, self._cache, wake)
        """The requests whose images are not encoded yet."""
        self._token = decode([family.token_id], False)
        self.tokens = image_prompts.image_tokens(encode)
        trial = Image(TRIAL_SIDE, TRIAL_SIDE, bytes(3 * TRIAL_SIDE**2))
        [part] = self._parts(trial)
        if encode(self._text(part, Layout(1)), False).count(family.token_id) != 1:
            raise families.NotReadable("its tokenizer has no image placeholder token")
        # Also compiles the networks.
        rows, tokens = family.encode(trial), family.layout((TRIAL_SIDE, TRIAL_SIDE)).tokens
        if rows.shape[0] != tokens or not np.isfinite(rows).all():
            raise families.NotReadable(f"an image of {tokens} tokens was encoded to {rows.shape[0]}")

    def parse(self, submit: Submit, context: int, max_characters: int) -> PromptParts:
        """Checks the text and the images of a prompt, and returns them, with videos divided into parts.

        Raises BadRequest.
        """
        found = image_prompts.parse(submit, context, max_characters)
        parts = [self._parts(image) for image in found.images]
        images = tuple(part.image for several in parts for part in several)  # a video's images are copies of its pixels
        return PromptParts(found.text, found.add_special_tokens, images, found.salt, parts=parts)

    def placeholder_ids(self, image_prompt: ImagePrompt) -> list[int]:
        """Returns the prompt as ids, with one negative id for each token of an image, which is the same for equal
        images.

        The number of these ids is exact. Raises BadRequest.
        """
        assert isinstance(image_prompt, PromptParts)
        salt = image_prompt.salt if self._shares else str(next(self._numbers))
        known = list[KnownImage]()

        def text(tag: re.Match[str]) -> str:
            parts = image_prompt.parts[int(tag[1])]
            found = [self._cache.get(part.image, salt, part.layout) for part in parts]
            known.extend(found)
            return "".join(self._text(part, one.layout) for part, one in zip(parts, found, strict=True))

        ids = self._encode(TAG.sub(text, image_prompt.text), image_prompt.add_special_tokens)
        runs = [(image.token, count) for image in known for _, count in image.layout.runs]
        if ids.count(self._family.token_id) != len(runs):
            raise BadRequest("the prompt contains the text of an image placeholder", param="messages")
        made, left = list[int](), iter(runs)
        for token in ids:
            if token == self._family.token_id:
                token, count = next(left)
                made += [token] * count
            else:
                made.append(token)
        return made

    @property
    def reads_videos(self) -> bool:
        return isinstance(self._family, VideoFamily)

    def of_prompt(self, ids: list[int]) -> PromptImages:
        """Returns the images of a prompt with these ids, made by `placeholder_ids`."""
        found, places = list[tuple[Places, KnownImage]](), np.flatnonzero(np.array(ids) < 0)
        while len(places):
            image = self._cache.named(ids[places[0]])
            found.append((places[: image.layout.tokens], image))
            places = places[image.layout.tokens :]
        return PromptImages(found, len(ids), self._family.token_id, whole=self._family.whole)

    def encode(self, request: GenerationRequest) -> None:
        """Queues a checked request until its images are encoded."""
        prompt = request.image_prompt
        assert isinstance(prompt, PromptParts), "some of its images were not encoded"
        content = [part.image for tag in TAG.finditer(prompt.text) for part in prompt.parts[int(tag[1])]]
        self.queue.add(request, request.native.images, content)

    def _parts(self, image: Image) -> list[Part]:
        """Returns the parts of a video; for an image, a single part. Raises BadRequest."""
        family = self._family
        if not image.times:
            return [Part(family.before, image, None, family.after)]
        assert isinstance(family, VideoFamily), "the request was checked"
        try:
            return family.split(image)
        except BadRequest as error:
            raise BadRequest(f"{image.param}: {error}", param=image.param) from error

    def _text(self, part: Part, layout: Layout) -> str:
        """Returns the text of a part, with one token for each run of image tokens."""
        runs = "".join(f"{text}{self._token}" for text, _ in layout.runs)
        return f"{part.before}{runs}{layout.end}{part.after}"


def input_embeddings(
    config: EngineConfig,
    settings: PipelineSettings,
    tokenizer: ModelTokenizer,
    wake: Callable[[], None],
    vision_file: VisionFile | None = None,
) -> Vision:
    """Returns the `engine.paged.parts.InputEmbeddings` of one model.

    Args:
        config: The options.
        settings: The settings of the pipeline.
        tokenizer: The model's tokenizer.
        wake: Wakes up the loop that runs the engine.
        vision_file: The file with the vision networks of a single-file model; None if the model is a directory.

    Raises:
        NotPageable: The paged engine cannot read this model's images.
    """
    networks = VisionNetworks(config.model_dir, settings.device, settings.properties, vision_file)
    try:
        if vision_file is None:
            family = families.load(config.model_dir, networks)
        else:
            family = families.of(Files(vision_file.config, vision_file.processor, vision_file.processor, networks))
        cache_bytes, shares = config.of(VisionOptions).image_cache_mb << 20, config.enable_prefix_caching
        return Vision(family, tokenizer.encode, tokenizer.decode, cache_bytes=cache_bytes, shares=shares, wake=wake)
    except families.NotReadable as error:
        raise NotPageable(str(error)) from error
