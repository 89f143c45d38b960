"""An ImagePipeline on openvino_genai's Text2ImagePipeline: Stable Diffusion, its successors, and Flux.

What GenAI 2026.4 does (measured): its callback is called after each step, and returning True ends the work with an
empty result; an exception in it ends the process; arguments that the model cannot have are a RuntimeError before the
first step, whose last line says why; rng_seed is the same for each request that has none.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from importlib.metadata import version
from queue import SimpleQueue
from typing import Any

from ..loading import devices

# isort: split
import openvino as ov
import openvino_genai as genai

from ...config import EngineConfig
from ...config.options import read_object
from ...engine_types import ModelInfo
from ...errors import BadRequest
from ...image_types import ImageInfo, ImageParams
from ..errors import last_line
from ..loading.load_errors import as_start_error
from ..loading.settings import base_properties

CHECKS = "/image_generation/"
"""What the source path in the message of a refused argument has."""


class GenAiImagePipeline:
    """The pipeline runs in a thread of its own, which stops after each step until the next one is wanted."""

    def __init__(self, config: EngineConfig) -> None:
        """Raises StartError."""
        config, _ = devices.on_device(config)
        properties = base_properties(config) | read_object("plugin_config", config.plugin_config)
        if config.num_streams:
            properties["NUM_STREAMS"] = config.num_streams
        with as_start_error(config):
            self._pipeline = genai.Text2ImagePipeline(config.model_dir, config.target_device, **properties)
            defaults = self._pipeline.get_generation_config()
        self.info = ModelInfo(
            vocab_size=0,
            context_length=0,
            versions={"openvino": str(ov.get_version()), "openvino_genai": version("openvino_genai")},
            images=ImageInfo(width=defaults.width, height=defaults.height, steps=defaults.num_inference_steps),
        )

    def generate(self, prompt: str, params: ImageParams) -> Generator[None, None, bytes]:
        steps: SimpleQueue[bytes | Exception | None] = SimpleQueue()
        stops: SimpleQueue[bool] = SimpleQueue()

        def after_step(*_: Any) -> bool:
            steps.put(None)
            return stops.get()

        def run() -> None:
            try:
                found = self._pipeline.generate(
                    prompt,
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
        begun = False
        try:
            while (found := steps.get()) is None:
                begun = True
                yield
                stops.put(False)
        finally:
            stops.put(True)  # only a thread that was left at a step reads it
            thread.join()
        if isinstance(found, Exception):
            if not begun and CHECKS in str(found):
                raise BadRequest(last_line(found))
            raise found
        return found
