"""An ImagePipeline on openvino_genai's pipelines: Stable Diffusion, its successors, Flux and others.

What GenAI 2026.4 does (measured): its callback is called for each step, in order and in another thread, while the next
steps are computed; calls that come late, after the last step, are left out, and that thread has ended before the image
is decoded. Returning True ends the work with an empty result; an exception in it ends the process; arguments that the
model cannot have are a RuntimeError before the first step, whose last line says why; rng_seed is the same for each
request that has none.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ..loading import devices

# isort: split
import numpy as np
import openvino as ov
import openvino_genai as genai

from ...config import EngineConfig
from ...config.options import read_object
from ...engine_types import ModelInfo
from ...errors import BadRequest
from ...image_types import ImageInfo, ImageParams
from ...types import Image
from ..errors import last_line
from ..loading.load_errors import as_start_error
from ..loading.lora import adapters
from ..loading.settings import base_properties

CHECKS = "/image_generation/"
"""What the source path in the message of a refused argument has."""
ENCODER = "vae_encoder"
"""The folder of the network that an image to edit needs."""


class GenAiImagePipeline:
    """The pipeline runs in a thread of its own, which decodes no image before the last call of its callback returns."""

    def __init__(self, config: EngineConfig) -> None:
        """Raises StartError."""
        config, _ = devices.on_device(config)
        properties = base_properties(config) | read_object("plugin_config", config.plugin_config)
        if config.num_streams:
            properties["NUM_STREAMS"] = config.num_streams
        if config.lora_modules:
            properties["adapters"] = adapters(config)
        with as_start_error(config):
            self._pipelines = _load(config, properties)
            defaults = self._pipelines[0].get_generation_config()
        self.info = ModelInfo(
            vocab_size=0,
            context_length=0,
            versions={"openvino": str(ov.get_version()), "openvino_genai": version("openvino_genai")},
            images=ImageInfo(
                width=defaults.width,
                height=defaults.height,
                steps=defaults.num_inference_steps,
                edits=len(self._pipelines) > 1,
                masks=len(self._pipelines) > 2,
            ),
        )

    def generate(
        self, prompt: str, params: ImageParams, images: Sequence[Image] = ()
    ) -> Generator[bytes | None, None, bytes]:
        pipeline = self._pipelines[len(images)]
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
            stops.put(True)  # only a thread that was left at a step reads it
            thread.join()
        if isinstance(found, Exception):
            if not begun and CHECKS in str(found):
                raise BadRequest(last_line(found))
            raise found
        return found


def _load(config: EngineConfig, properties: dict[str, Any]) -> list[Any]:
    """Returns the pipelines of one loaded model, by the number of images that they take: none, one to edit, its mask.

    A model without an encoder of images, or of a family that cannot be edited, has only the first. Raises RuntimeError.
    """
    kinds = [genai.Text2ImagePipeline, genai.Image2ImagePipeline, genai.InpaintingPipeline]
    if not Path(config.model_dir, ENCODER).is_dir():
        del kinds[1:]
    while True:
        kind = kinds.pop()
        try:
            found = [kind(config.model_dir, config.target_device, **properties)]
            break
        except RuntimeError:
            if not kinds:
                raise
    for kind in reversed(kinds):
        found.insert(0, kind(found[0]))  # with the same networks
    return found
