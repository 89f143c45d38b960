"""openvino_genai's VLMPipeline behind the contract: one conversation at a time, for devices without paged attention.

Images are encoded in the generating thread, so commands are heard meanwhile.
"""

from __future__ import annotations

from . import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
from dataclasses import replace
from typing import Any

import openvino_genai as genai

from ...config import Config
from ...errors import BadRequest, StartError
from ...types import IMAGE_TAG, Image
from ..generation.pipeline import Handle, ImagePrompt, PipelineRequest
from .image_tokens import GenAiImageTokens, Size
from .settings import Plan
from .stateful import StatefulHandle, StatefulPipeline, Streamer
from .vlm_continuous import AS_IT_IS, LANGUAGE_MODEL, image_tokens, tensor


class VlmStateful(StatefulPipeline):
    """A contract.Pipeline with a contract.Sight."""

    NETWORK = LANGUAGE_MODEL

    def __init__(self, config: Config, plan: Plan | None = None) -> None:
        super().__init__(config, plan)
        seen = image_tokens(self.encode)
        self.info = replace(self.info, vision=True, image_tokens=seen, chat_template=self._template)
        self.image_token_counter = GenAiImageTokens(config.model_dir, self.encode, self._counts, _counted)

    def _open(self, config: Config, plan: Plan) -> Any:
        if config.lora_modules:
            raise StartError("adapters are for text models, and for models with vision in a batch (VLM_CB)")
        pipe = genai.VLMPipeline(str(config.model_dir), plan.device, ATTENTION_BACKEND="SDPA", **plan.properties)
        self._template = pipe.get_tokenizer().get_original_chat_template()
        pipe.set_chat_template(AS_IT_IS)
        return pipe

    def _possible(self, request: PipelineRequest) -> None:
        super()._possible(request)
        if request.image_prompt is None:
            raise BadRequest("a model with vision takes text and images, not token ids", param="prompt")

    def _compute(self, handle: StatefulHandle) -> list[int]:
        assert handle.request.image_prompt is not None
        result = self._see(handle.request.image_prompt, handle.config, Streamer(self, handle))
        handle.prompt_tokens = int(result.perf_metrics.get_num_input_tokens())
        return []  # texts only; every id has gone through the streamer

    def _see(self, image_prompt: ImagePrompt, config: Any, streamer: Streamer | None = None) -> Any:
        config.apply_chat_template = not image_prompt.add_special_tokens
        images = [tensor(image) for image in image_prompt.images]
        more = {} if streamer is None else {"streamer": streamer}
        return self._pipe.generate(image_prompt.text, images=images, generation_config=config, **more)

    def _probe(self, length: int) -> None:
        self._see(ImagePrompt("a" + " and" * length, False), self._short())

    def _counts(self, sizes: list[Size]) -> list[int]:
        """Prompt tokens of "a", a black image of each size, and "b". Only while loading."""
        counts = []
        for height, width in sizes:
            image = Image(height, width, bytes(3 * height * width))
            result = self._see(ImagePrompt(f"a{IMAGE_TAG.format(0)}b", False, (image,)), self._short())
            counts.append(int(result.perf_metrics.get_num_input_tokens()))
        return counts


def _counted(handle: Handle) -> int:
    return handle.prompt_tokens if isinstance(handle, StatefulHandle) else 0
