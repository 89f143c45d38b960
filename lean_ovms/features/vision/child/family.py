"""Declares what the paged engine needs of a model family to serve its images. Each family is a file of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from ....engine.paged.network import Rows
from ....media.pixels import Size
from ....types import Image, Json

if TYPE_CHECKING:
    from .networks import VisionNetworks


class Layout(NamedTuple):
    """The tokens of an image, or of a part of a video."""

    tokens: int
    """The number of its tokens."""
    height: int = 0
    """The rows of tokens, where positions have rows and columns; 0: its tokens have positions as text has."""
    width: int = 0
    """The columns of tokens; 0: its tokens have positions as text has."""
    texts: tuple[tuple[str, int], ...] = ()
    """For each run of its tokens the text before it, and their number; (): there is no text between them."""
    time: int | None = None
    """How many positions it is behind the first frames of its video; None: it is the first, or an image."""

    @property
    def runs(self) -> tuple[tuple[str, int], ...]:
        """Returns each run of its tokens: the text before it, and their number."""
        return self.texts or (("", self.tokens),)


class VisionFamily(Protocol):
    """A family of models that read images: it encodes an image, and knows the tokens of it in a prompt."""

    token_id: int
    """The token that stands for a place of an image in a prompt."""
    before: str
    """The text before the tokens of an image."""
    after: str
    """The text behind the tokens of an image."""
    whole: bool
    """True: the tokens of an image see each other in both directions, so they have to be computed in one step."""

    def layout(self, size: Size) -> Layout:
        """Returns how many tokens an image of this height and width takes. Raises BadRequest if it cannot be read."""

    def encode(self, image: Image) -> Rows:
        """Returns the embeddings that take the places of an image's tokens. Called in the encoder's thread.

        Where deeper layers get embeddings too, these are behind the first ones, layer by layer: [tokens, all].
        """


class Part(NamedTuple):
    """An image, or frames of a video that are encoded in one call."""

    before: str
    """The text before its tokens."""
    image: Image
    """The image, or the frames."""
    layout: Layout | None
    """The tokens of it; None: the layout of the image."""
    after: str
    """The text behind its tokens."""


def clock(second: float) -> str:
    """Returns minutes and seconds, as texts before frames have them."""
    return f"{int(second) // 60:02d}:{int(second) % 60:02d}"


@runtime_checkable
class VideoFamily(VisionFamily, Protocol):
    """A family that reads videos too."""

    def split(self, video: Image) -> list[Part]:
        """Returns the parts of a video. Raises BadRequest if it cannot be read."""

    def encode_frames(self, frames: Image, layout: Layout) -> Rows:
        """Encodes a part as `encode` does an image."""


class Files(NamedTuple):
    """The files of a model with vision."""

    config: Json
    """The members of config.json, without the fields of text_config at its top."""
    processor: Json
    """How images are processed."""
    video: Json
    """How videos are processed."""
    networks: VisionNetworks
    """The networks."""

    @property
    def image_token(self) -> int:
        """VisionFamily.token_id of families whose older files name it an index. Raises KeyError."""
        config = self.config
        return int(config["image_token_index"] if "image_token_index" in config else config["image_token_id"])
