"""The options of image models."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...config.options import Options, option
from ...errors import StartError

TASK = "image_generation"
"""The task of these models, by OVMS's name."""
_model = partial(option, group="model", tasks=(TASK,))
_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")


def image_size(text: str) -> tuple[int, int]:
    """Returns width and height of an image. Raises ValueError with the form that is wanted."""
    if found := _SIZE.fullmatch(text):
        return int(found[1]), int(found[2])
    raise ValueError("WIDTHxHEIGHT in pixels, such as 512x512")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ImageOptions(Options):
    """What requests for images may ask for."""

    resolution: str = _model(
        "",
        "sizes that requests for images may have, as WIDTHxHEIGHT, separated by spaces; the first is the default; "
        "empty: any up to max_resolution",
        several=True,
    )
    default_resolution: str = _model(
        "", "size of images where a request has none, as WIDTHxHEIGHT; empty: the model's own"
    )
    max_resolution: str = _model("2048x2048", "largest width and height of images, as WIDTHxHEIGHT; more: 400")
    max_num_images_per_prompt: int = _model(10, "most images in one request; more: 400", low=1, high=1000)
    default_num_inference_steps: int = _model(
        0, "denoising steps of an image where a request has none; 0: the model's own", low=0, high=1000
    )
    max_num_inference_steps: int = _model(100, "most denoising steps of an image; more: 400", low=1, high=1000)

    def check(self, config: Any) -> None:
        """Checks the form of the sizes. Raises StartError."""
        try:
            for size in (self.max_resolution, self.default_resolution or "1x1", *self.resolution.split()):
                image_size(size)
        except ValueError as error:
            names = "--resolution, --default_resolution and --max_resolution"
            raise StartError(f"{names} must be {error}, not {size!r}") from None
