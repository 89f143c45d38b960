"""What the paged engine needs of a model family to serve its images. Each family is a file of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from ....engine.paged.network import Rows
from ....media.images.pixels import Size
from ....types import Image, Json

if TYPE_CHECKING:
    from .networks import VisionNetworks


class Layout(NamedTuple):
    """The tokens of an image. height, width: in tokens, for positions with rows and columns; 0: as text has.

    time: how far it is behind the first frames of its video in positions; None: it is the first, or an image.
    texts: for each run of its tokens the text before it, and their number; (): there is no text between them.
    """

    tokens: int
    height: int = 0
    width: int = 0
    texts: tuple[tuple[str, int], ...] = ()
    time: int | None = None

    @property
    def runs(self) -> tuple[tuple[str, int], ...]:
        """Returns each run of its tokens: the text before it, and their number."""
        return self.texts or (("", self.tokens),)


class VisionFamily(Protocol):
    """token_id: stands for a place of an image in a prompt. before, after: texts around it.

    whole: the tokens of an image see each other in both directions, so they have to be computed in one step.
    """

    token_id: int
    before: str
    after: str
    whole: bool

    def layout(self, size: Size) -> Layout:
        """Returns how many tokens an image of this height and width takes. Raises BadRequest if it cannot be read."""

    def encode(self, image: Image) -> Rows:
        """Returns the embeddings that take the places of an image's tokens. Called in the encoder's thread.

        Where deeper layers get embeddings too, these are behind the first ones, layer by layer: [tokens, all].
        """


class Part(NamedTuple):
    """An image, or frames of a video that are encoded in one call. before, after: texts around their tokens.

    layout: None: that of the image.
    """

    before: str
    image: Image
    layout: Layout | None
    after: str


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
    """config: config.json, without the fields of text_config at its top. processor, video: of images and of videos."""

    config: Json
    processor: Json
    video: Json
    networks: VisionNetworks

    @property
    def image_token(self) -> int:
        """VisionFamily.token_id of families whose older files name it an index. Raises KeyError."""
        config = self.config
        return int(config["image_token_index"] if "image_token_index" in config else config["image_token_id"])
