"""openvino_genai's VLMPipeline as a Pipeline: one request at a time, for devices without paged attention.

Images are encoded in the generating thread, so the engine handles commands meanwhile.
"""

from __future__ import annotations

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
from dataclasses import replace
from typing import Any

import openvino_genai as genai

from ....config import EngineConfig
from ....engine.generation import image_prompts
from ....engine.generation.image_prompts import ImagePrompt
from ....engine.loading.settings import PipelineSettings
from ....errors import BadRequest, StartError
from ....manifest import GENAI_ADAPTERS
from ....repository.model_config import LANGUAGE_MODEL
from .guard.pipeline import Handle, PipelineRequest
from .image_tokens import GenAiImageTokens, Size
from .stateful import StatefulHandle, StatefulPipeline, Streamer
from .vlm_continuous import IDENTITY_TEMPLATE, tensor, with_black_image


class VlmStateful(StatefulPipeline):
    """A Pipeline for models with vision, with a counter of image tokens."""

    NETWORK = LANGUAGE_MODEL

    def __init__(self, config: EngineConfig, settings: PipelineSettings | None = None) -> None:
        super().__init__(config, settings)
        tokens = image_prompts.image_tokens(self.encode)
        self.info = replace(self.info, vision=True, image_tokens=tokens, chat_template=self._template)
        self.image_token_counter = GenAiImageTokens(config.model_dir, self.encode, self._measure_images, _prompt_tokens)

    def _open(self, config: EngineConfig, settings: PipelineSettings) -> Any:
        if config.wants(GENAI_ADAPTERS):
            raise StartError("LoRA adapters need a text model, or --pipeline_type VLM_CB for a model with vision")
        pipe = genai.VLMPipeline(
            str(config.model_dir), settings.device, ATTENTION_BACKEND="SDPA", **settings.properties
        )
        self._template = pipe.get_tokenizer().get_original_chat_template()
        pipe.set_chat_template(IDENTITY_TEMPLATE)
        return pipe

    def check(self, request: PipelineRequest) -> None:
        if request.image_prompt is None:
            raise BadRequest("a model with vision does not accept prompts of token ids; send text", param="prompt")
        super().check(request)

    def _compute(self, handle: StatefulHandle) -> list[int]:
        assert handle.request.image_prompt is not None
        result = self._generate_with_images(handle.request.image_prompt, handle.config, Streamer(self, handle))
        handle.prompt_tokens = int(result.perf_metrics.get_num_input_tokens())
        return []  # the result has only texts; the ids came through the streamer

    def _generate_with_images(self, image_prompt: ImagePrompt, config: Any, streamer: Streamer | None = None) -> Any:
        config.apply_chat_template = not image_prompt.add_special_tokens
        images = [tensor(image) for image in image_prompt.images]
        more = {} if streamer is None else {"streamer": streamer}
        return self._pipe.generate(image_prompt.text, images=images, generation_config=config, **more)

    def _probe(self, length: int) -> None:
        self._generate_with_images(ImagePrompt("a" + " and" * length, False), self._short_config(1))

    def _measure_images(self, sizes: list[Size]) -> list[int]:
        """Returns the number of tokens of a prompt with a black image between two letters, for each image size."""
        results = [self._generate_with_images(with_black_image(*size), self._short_config(1)) for size in sizes]
        return [int(result.perf_metrics.get_num_input_tokens()) for result in results]


def _prompt_tokens(handle: Handle) -> int:
    return handle.prompt_tokens if isinstance(handle, StatefulHandle) else 0
