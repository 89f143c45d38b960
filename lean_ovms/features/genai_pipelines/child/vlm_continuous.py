"""openvino_genai's continuous batching of models with vision, as a Pipeline.

Such a pipeline takes text and images, never token ids: these fail inside a step, block the pipeline and then crash the
process. It encodes the images while a request is added, without releasing the GIL, so no other request gets a token
meanwhile.
"""

from __future__ import annotations

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
import logging
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from ....config import EngineConfig
from ....engine.generation import image_prompts
from ....engine.generation.image_prompts import ImagePrompt
from ....engine.loading.pipeline_choice import drafts_of
from ....engine.loading.settings import PipelineSettings
from ....engine.loading.text_encoder import exported_ids
from ....errors import BadRequest, StartError, last_line
from ....repository.model_config import LANGUAGE_MODEL
from ....types import IMAGE_TAG, Image
from .continuous import ContinuousPipeline
from .guard.pipeline import Handle, PipelineRequest
from .image_tokens import GenAiImageTokens

log = logging.getLogger(__name__)

IDENTITY_TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
"""A chat template that changes nothing. GenAI adds BOS and the like to a prompt, unless it comes from a template; ours
was rendered before, and with this template nothing is added."""
WARM_WORDS = (4, 30, 200)


class VlmContinuous(ContinuousPipeline):
    """A Pipeline for models with vision, with a counter of image tokens."""

    NETWORK = LANGUAGE_MODEL

    def __init__(self, config: EngineConfig, settings: PipelineSettings | None = None) -> None:
        drafts = drafts_of(config)
        if drafts.model or drafts.lookup:
            raise StartError("a model with vision cannot be combined with a draft model or prompt lookup")
        super().__init__(config, settings)
        tokens = image_prompts.image_tokens(self.encode)
        self.info = replace(self.info, vision=True, image_tokens=tokens, chat_template=self._template)
        self.image_token_counter = GenAiImageTokens(config.model_dir, self.encode, self._measure_images, prompt_tokens)

    def add(self, request: PipelineRequest) -> Handle:
        assert request.image_prompt is not None, "this pipeline does not accept token ids"
        return self._add(request.image_prompt, self._config(request))

    def _add(self, image_prompt: ImagePrompt, config: Any) -> Handle:
        self._next_id += 1
        config.apply_chat_template = not image_prompt.add_special_tokens
        images = [tensor(image) for image in image_prompt.images]
        try:
            handle: Handle = self._pipe.add_request(self._next_id, image_prompt.text, images, config)
        except (RuntimeError, TypeError, ValueError) as error:
            text = f"the model cannot read this prompt with its images: {last_line(error)}"
            raise BadRequest(text, param="messages") from error
        return handle

    def _measure(self, settings: PipelineSettings) -> int:
        """Returns the number of blocks in the KV cache, measured with a text of more than one block."""
        self._template = self._tokenizer.get_original_chat_template()
        self._tokenizer.set_chat_template(IDENTITY_TEMPLATE)
        text, words = "", 0
        while words <= settings.block_size:
            text += " and so"
            words = len(exported_ids(self._tokenizer, text, False))
        self._run_texts([text], 1)
        share = self._pipe.get_metrics().cache_usage / 100
        measured = round(-(-words // settings.block_size) / share) if share > 0 else 0
        return min(settings.blocks, measured) if settings.blocks and measured else settings.blocks or measured

    def _warm_up(self, settings: PipelineSettings) -> None:
        for words in (n for n in WARM_WORDS if 4 * n < min(settings.context, settings.step_tokens)):
            self._run_texts([f"{words}" + " and" * words], 4)
        self._run_texts([f"{n} and so" for n in range(4)], 4)

    def _run_texts(self, texts: list[str], max_tokens: int) -> None:
        for text in texts:
            self._add(ImagePrompt(text, False), self._short_config(max_tokens))
        while self._pipe.has_non_finished_requests():
            self._pipe.step()

    def _measure_images(self, sizes: list[tuple[int, int]]) -> list[int]:
        """Returns the number of prompt tokens of "a", a black image and "b", for each height and width, while loading.

        Each request is cancelled at once, so that it is never computed; its length is known with the next step.
        """
        handles: list[Any] = []
        for size in sizes:
            handles.append(self._add(with_black_image(*size), self._short_config(1)))
            handles[-1].cancel()
        while self._pipe.has_non_finished_requests():
            self._pipe.step()
        return [int(handle.get_perf_metrics().get_num_input_tokens()) for handle in handles]


def with_black_image(height: int, width: int) -> ImagePrompt:
    """Returns a prompt of "a", a black image of this size, and "b"."""
    image = Image(height, width, bytes(3 * height * width))
    return ImagePrompt(f"a{IMAGE_TAG.format(0)}b", False, (image,))


def tensor(image: Image) -> Any:
    """Converts an image to a tensor [height, width, RGB] of 8 bits, the only form that GenAI reads correctly."""
    return ov.Tensor(np.frombuffer(image.pixels, np.uint8).reshape(image.height, image.width, 3))


def prompt_tokens(handle: Any) -> int:
    """Returns the number of prompt tokens of a finished request, 0 while it runs."""
    if handle.get_status() == genai.GenerationStatus.RUNNING:
        return 0
    try:
        return int(handle.get_perf_metrics().get_num_input_tokens())
    except RuntimeError:
        return 0
