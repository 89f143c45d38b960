"""The manifest of image models."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ...config.options import Options, option
from ...errors import StartError
from ...manifest import BASES, SECONDS_BUCKETS, Feature, Metric, PanelRow, Route, TaskRow
from ..media_files.feature import ImageFileOptions

TASK = "image_generation"
"""The task of these models, by OVMS's name."""
_model = partial(option, group="model", tasks=(TASK,))
_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")


def image_size(text: str) -> tuple[int, int]:
    """Parses the width and the height of an image. Raises ValueError with the expected form."""
    if found := _SIZE.fullmatch(text):
        return int(found[1]), int(found[2])
    raise ValueError("WIDTHxHEIGHT in pixels, such as 512x512")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ImageOptions(Options):
    """The limits of requests for images."""

    resolution: str = _model(
        "",
        "sizes that image requests may ask for, as WIDTHxHEIGHT, separated by spaces, the default first; if empty, "
        "any up to max_resolution",
        several=True,
    )
    default_resolution: str = _model(
        "", "size of images if a request has none, as WIDTHxHEIGHT; the model's own if empty"
    )
    max_resolution: str = _model(
        "2048x2048", "largest width and height of images, as WIDTHxHEIGHT; larger ones are rejected with 400"
    )
    max_num_images_per_prompt: int = _model(
        10, "maximum number of images that one request may ask for; more are rejected with 400", low=1, high=1000
    )
    default_num_inference_steps: int = _model(
        0, "denoising steps of an image if a request has none; 0 for the model's own", low=0, high=1000
    )
    max_num_inference_steps: int = _model(
        100, "maximum number of denoising steps of an image; more are rejected with 400", low=1, high=1000
    )

    def check(self, config: Any) -> None:
        """Checks the form of the sizes. Raises StartError."""
        try:
            for size in (self.max_resolution, self.default_resolution or "1x1", *self.resolution.split()):
                image_size(size)
        except ValueError as error:
            names = "--resolution, --default_resolution and --max_resolution"
            raise StartError(f"{names} must be {error}, not {size!r}") from None


if TYPE_CHECKING:
    from ...util.files import ModelFiles

FILES = ("vae_decoder/openvino_model.xml", "model_index.json", "scheduler/scheduler_config.json")
"""Files of every model that makes images; the first one shows it."""
ARCHITECTURES = ("UNet2DConditionModel", "AutoencoderKL")
"""Architectures of parts that only its pipelines have; text encoders are models of their own, too."""
QUEUE_SECONDS, SECONDS = "lean_ovms_image_queue_seconds", "lean_ovms_image_seconds"
"""Metrics."""


def _makes_images(files: ModelFiles) -> bool:
    kind = files.json("model_index.json").get("_class_name")
    named = files.is_of("Transformer2DModel") or any(name in ARCHITECTURES for name in files.architectures)
    return named or (isinstance(kind, str) and ("StableDiffusion" in kind or "Flux" in kind))


def _missing(names: Collection[str]) -> list[str]:
    return [name for name in FILES if name not in names]


FEATURE = Feature(
    name="images",
    summary="generates images from text, and edits images",
    title="OpenAI: images",
    reference="https://platform.openai.com/docs/api-reference/images",
    needs=("media_files", "uploads"),
    extra="vision",
    options=ImageOptions,
    libraries=(ImageFileOptions,),
    flags="flags.txt",
    harmless=("frame_count", "frame_duration_ms", "svg"),
    routes=(
        Route("POST", "/images/generations", "api:handle", BASES, model="ImageModel"),
        Route("POST", "/images/edits", "api:handle_edits", BASES),
        Route("POST", "/images/variations", "api:handle_variations", BASES),
    ),
    panel=PanelRow(view="images", place=3, title="Images", icon="image", tasks=((TASK, "Images"),)),
    tasks=(
        TaskRow(
            name=TASK,
            recognizes=_makes_images,
            model="model:ImageModel",
            loader="child.task:load",
            records="records",
            networks=FILES[:1],
            missing=_missing,
            bodies=(((), "/v1/images/generations"),),
        ),
    ),
    metrics=(
        Metric(QUEUE_SECONDS, "histogram", "time that an image waits", buckets=SECONDS_BUCKETS),
        Metric(SECONDS, "histogram", "time to generate an image", buckets=SECONDS_BUCKETS),
    ),
)
