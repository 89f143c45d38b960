"""Generates images with openvino_genai's pipelines: Stable Diffusion, its successors, Flux and others.

GenAI 2026.4 was found to behave as follows. Its callback is called for each step, in order and in another thread, while
the next steps are computed. Late calls, after the last step, are dropped, and the thread has ended before the image is
decoded. Returning True ends the work with an empty result; an exception in it crashes the process. Arguments that the
model does not support are a RuntimeError before the first step, whose last line says why. rng_seed is the same for all
requests without a seed. In some families, a pipeline that is made from another one has no scheduler and crashes the
process. A T5 encoder keeps the shape of its first prompt, and every other shape is refused from then on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from typing import Any

# isort: split
import numpy as np
import openvino as ov
import openvino_genai as genai

from ....config import EngineConfig
from ....config.options import read_object
from ....engine.loading.pipeline_choice import as_start_error
from ....engine.loading.settings import base_properties, on_device
from ....errors import BadRequest, last_line
from ....manifest import GENAI_ADAPTERS
from ....types import Image
from ....types.engine import ModelInfo
from ..params import ImageInfo, ImageParams

log = logging.getLogger(__name__)
CHECKS = "/image_generation/"
"""The part of the source path that the message about a refused argument contains."""
SCHEDULER = "scheduler/scheduler_config.json"
ENCODER = "vae_encoder"
"""The folder of the network that an image to edit needs."""


class GenAiImagePipeline:
    """An ImagePipeline that runs openvino_genai's pipeline in a thread."""

    def __init__(self, config: EngineConfig) -> None:
        """Loads a model. Raises StartError."""
        config, _ = on_device(config)
        properties = base_properties(config) | read_object("plugin_config", config.plugin_config)
        if config.num_streams:
            properties["NUM_STREAMS"] = config.num_streams
        if (adapters := config.part(GENAI_ADAPTERS)) is not None:
            properties["adapters"] = adapters(config)
        self._load = partial(_load, config, properties)
        with as_start_error(config):
            self._pipelines = self._load()
            self._index = Path(config.model_dir, "model_index.json").read_text(encoding="utf-8")
        self._defaults = {count: pipeline.get_generation_config() for count, pipeline in self._pipelines.items()}
        defaults = self._defaults[min(self._defaults)]
        self._t5_shape: tuple[int, int] | None = None
        self.info = ModelInfo(
            vocab_size=0,
            context_length=0,
            versions={"openvino": str(ov.get_version()), "openvino_genai": version("openvino_genai")},
            of_task=asdict(
                ImageInfo(
                    width=defaults.width,
                    height=defaults.height,
                    steps=defaults.num_inference_steps,
                    texts=0 in self._pipelines,
                    edits=1 in self._pipelines,
                    masks=2 in self._pipelines,
                )
            ),
        )

    def generate(
        self, prompt: str, params: ImageParams, images: Sequence[Image] = ()
    ) -> Generator[bytes | None, None, bytes]:
        pipeline = self._pipeline(len(images), params)
        pixels = [np.frombuffer(one.pixels, np.uint8).reshape(1, one.height, one.width, 3) for one in images]
        steps: SimpleQueue[bytes | Exception | tuple[int, int, ov.Tensor]] = SimpleQueue()
        stops: SimpleQueue[bool] = SimpleQueue()

        def after_step(step: int, count: int, latent: ov.Tensor) -> bool:
            steps.put((step + 1, count, latent))
            return stops.get()

        def run() -> None:
            try:
                found = pipeline.generate(
                    prompt,
                    *map(ov.Tensor, pixels),
                    width=params.width,
                    height=params.height,
                    num_inference_steps=params.steps,
                    rng_seed=params.seed,
                    callback=after_step,
                    **params.more,
                )
                steps.put(found.data.tobytes())
            except Exception as error:
                steps.put(error)

        thread = threading.Thread(target=run, name="image", daemon=True)
        thread.start()
        begun, shown = False, 0
        try:
            while isinstance(found := steps.get(), tuple):
                begun, (done, count, latent) = True, found
                due = params.due(done, count)
                yield pipeline.decode(latent).data.tobytes() if due > shown else None
                shown = max(due, shown)
                stops.put(False)
        finally:
            stops.put(True)  # read only by a thread that was interrupted at a step
            thread.join()
        if isinstance(found, Exception):
            if not begun and CHECKS in str(found):
                raise _refusal(last_line(found), params)
            raise found
        return found

    def _pipeline(self, images: int, params: ImageParams) -> Any:
        """Returns the pipeline for this number of images. Loads the model again if its T5 encoder has another shape."""
        if "T5EncoderModel" in self._index:
            defaults = self._defaults[images]
            guidance = params.more.get("guidance_scale", defaults.guidance_scale)
            guided = "StableDiffusion3Pipeline" in self._index and guidance > 1
            shape = 1 + guided, params.more.get("max_sequence_length", defaults.max_sequence_length)
            if self._t5_shape not in (shape, None) or not self._pipelines:
                log.info("loading the model again, for a batch of %d prompts of %d tokens", *shape)
                self._pipelines.clear()  # frees the memory before the model is loaded again
                self._pipelines = self._load()
            self._t5_shape = shape
        return self._pipelines[images]


def _refusal(message: str, params: ImageParams) -> BadRequest:
    """Converts the pipeline's message about its arguments to an error for the client that names the field."""
    if "target shape" in message:
        message = (
            f"this model does not support the width {params.width} and the height {params.height}; try multiples of 64"
        )
    named = message.lower().replace(" ", "_")
    fields = *sorted(params.more, key=len, reverse=True), "num_inference_steps", "width"
    param = next((name for name in fields if name in named), None)
    return BadRequest(message, param="size" if param == "width" else param)


def _load(config: EngineConfig, properties: dict[str, Any]) -> dict[int, Any]:
    """Loads a model, and returns its pipelines by the number of images that they take.

    0 is for generating, 1 for editing an image, and 2 for an image and its mask. A model without an image encoder, or
    of a family that cannot edit, or whose pipelines do not share their networks, has only the first. A model for
    inpainting has only the last. Raises RuntimeError.
    """
    kinds = [genai.Text2ImagePipeline, genai.Image2ImagePipeline, genai.InpaintingPipeline]
    if not Path(config.model_dir, ENCODER).is_dir():
        del kinds[1:]
    while True:
        kind, count = kinds.pop(), len(kinds)
        found: dict[int, Any] = {}
        try:
            found[count] = kind(config.model_dir, config.target_device, **properties)
            for fewer in reversed(range(count)):
                found[fewer] = kinds[fewer](found[fewer + 1])  # shares the networks, but not always a scheduler
                found[fewer].set_scheduler(genai.Scheduler.from_config(Path(config.model_dir, SCHEDULER)))
            return found
        except RuntimeError:
            if 2 in found:
                return {2: found[2]}
            if not kinds:
                raise
