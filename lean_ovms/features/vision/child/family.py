"""Declares what the paged engine needs of a model family to serve its images.

Each family has a module of its own, and a row in families.py for each model_type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ....engine.paged.network import Rows
from ....media import pixels
from ....media.pixels import Pixels, Scale, Size
from ....types import Image, Json

if TYPE_CHECKING:
    from .networks import VisionNetworks


class Layout(NamedTuple):
    """The tokens of an image, or of a part of a video."""

    tokens: int
    """The number of its tokens."""
    height: int = 0
    """The number of rows of tokens, if positions have rows and columns; 0 if positions are like those of text."""
    width: int = 0
    """The number of columns of tokens; 0 if its tokens have positions like those of text."""
    texts: tuple[tuple[str, int], ...] = ()
    """The text before each run of its tokens, and the number of tokens in the run; empty if there is only one run."""
    time: int | None = None
    """The distance in positions from the first frames of its video; None for the first frames, and for an image."""
    end: str = ""
    """The text after the last run, before that after all images of the family."""

    @property
    def runs(self) -> tuple[tuple[str, int], ...]:
        """The text before each run of its tokens, and the number of tokens in the run."""
        return self.texts or (("", self.tokens),)


class VisionFamily(Protocol):
    """A family of models that read images. It encodes images, and knows their tokens in a prompt.

    It is created from a model's Files, and raises KeyError, TypeError or ValueError for those of another family.
    """

    token_id: int
    """The id of the token that stands for one image token in the model's vocabulary."""
    before: str
    """The text before the tokens of an image."""
    after: str
    """The text after the tokens of an image."""
    whole: bool
    """Whether an image's tokens attend to each other in both directions, so that one step computes them all."""

    def layout(self, size: Size) -> Layout:
        """Returns the tokens that an image of this height and width takes. Raises BadRequest if it cannot be read."""

    def encode(self, image: Image) -> Rows:
        """Returns the embeddings of an image's tokens. It is called in the encoder's thread.

        If deeper layers get embeddings too, these follow the first ones, layer by layer: [tokens, layers x hidden].
        """


class Part(NamedTuple):
    """An image, or the frames of a video that are encoded in one call."""

    before: str
    """The text before its tokens."""
    image: Image
    """The image or the frames."""
    layout: Layout | None
    """The tokens of the part; None for the layout of an image."""
    after: str
    """The text after its tokens."""


def clock(second: float) -> str:
    """Returns a time as MM:SS, the form in which prompts have the times of frames."""
    return f"{int(second) // 60:02d}:{int(second) % 60:02d}"


@runtime_checkable
class VideoFamily(VisionFamily, Protocol):
    """A family of models that read videos, too."""

    def split(self, video: Image) -> list[Part]:
        """Returns the parts of a video. Raises BadRequest if it cannot be read."""

    def encode_frames(self, frames: Image, layout: Layout) -> Rows:
        """Returns the embeddings of the tokens of a video's part."""


class Files(NamedTuple):
    """The files of a model with vision."""

    config: Json
    """The members of config.json, without the fields of text_config at its top."""
    processor: Json
    """The settings of the image processor."""
    video: Json
    """The settings of the video processor; those of the image processor if the model has no other."""
    networks: VisionNetworks
    """The networks that encode images."""

    @property
    def image_token(self) -> int:
        """The id of the image token in families whose older files call it an index. Raises KeyError."""
        config = self.config
        return int(config["image_token_index"] if "image_token_index" in config else config["image_token_id"])


class ImageFamily:
    """The base class of families: what most of them read from a model's files, and the call of their encoder."""

    before = after = ""
    whole = False
    resample: ClassVar[int] = pixels.BICUBIC
    """Pillow's number of the resampling filter for models whose processor does not name one."""

    def __init__(self, files: Files) -> None:
        """Reads the files. Raises KeyError, TypeError or ValueError for those of another family."""
        self.token_id = files.image_token
        self._networks = files.networks
        self._scale = Scale.read(files.processor)
        self._resample = int(files.processor.get("resample", self.resample))

    def _values(self, images: Sequence[Pixels]) -> Rows:
        """Returns the scaled pixels [images, RGB, height, width] of images of one size."""
        return np.stack([self._scale(image) for image in images])

    def _embeddings(self, values: Rows, **inputs: Any) -> Rows:
        """Returns the embeddings [tokens, hidden] of images.

        Args:
            values: The pixels, as `_values` returns them.
            **inputs: Further inputs of the network that encodes images.
        """
        [features] = self._networks.run("vision_embeddings", {"pixel_values": values, **inputs})
        return features.reshape(-1, features.shape[-1])
