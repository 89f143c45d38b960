"""Keeps the images that were encoded last, by their content.

Each image has a number that stands for its content in prompts. All its tokens have the id -1 - number, so that the
prefix cache distinguishes images like texts.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ....engine.paged.network import Rows
from ....errors import BadRequest
from ....types import Image
from .family import Layout, VisionFamily

MAX_KNOWN = 16384
"""The most images whose numbers are remembered. Each takes some hundred bytes."""


@dataclass(slots=True, eq=False)
class KnownImage:
    """An image that occurred in a prompt."""

    number: int
    """The number that stands for its content in prompts."""
    layout: Layout
    """The layout of its tokens."""
    rows: Rows | None = None
    """The embeddings; None until it is encoded, and after they have been dropped."""

    @property
    def token(self) -> int:
        """The negative id that each of its tokens has in a prompt."""
        return -1 - self.number


class ImageCache:
    """Finds images by their content. It is used by the thread of the engine's loop."""

    def __init__(self, family: VisionFamily, budget: int) -> None:
        """Creates an empty cache for a family's embeddings of images, with a budget in bytes."""
        self._family = family
        self._budget = budget
        self._images: OrderedDict[tuple[str, str], KnownImage] = OrderedDict()  # the most recently used is last
        self._by_token: dict[int, KnownImage] = {}
        self._encoded: OrderedDict[KnownImage, int] = OrderedDict()  # the bytes of each image's embeddings
        self._last = 0
        self.bytes = 0

    def get(self, image: Image, salt: str = "", layout: Layout | None = None) -> KnownImage:
        """Returns the entry of an image, which is created if it is new.

        Args:
            image: The image.
            salt: Only requests with the same salt share the entry.
            layout: The layout of its tokens; None for the one that the model family computes.

        Raises:
            BadRequest: The model cannot read the image; the error names its field.
        """
        key = image.content(), salt
        known = self._images.pop(key, None)
        if known is None:
            self._last += 1
            try:
                known = KnownImage(self._last, layout or self._family.layout((image.height, image.width)))
            except BadRequest as error:
                raise BadRequest(f"{image.param}: {error}", param=image.param) from error
        self._images[key] = self._by_token[known.token] = known
        if known in self._encoded:
            self._encoded.move_to_end(known)
        while len(self._images) > MAX_KNOWN:
            del self._by_token[self._images.popitem(last=False)[1].token]
        return known

    def named(self, token: int) -> KnownImage:
        """Returns the image whose tokens have this id, among those that `get` has returned recently."""
        return self._by_token[token]

    def store(self, known: KnownImage, rows: Rows) -> None:
        """Keeps an image's embeddings, and drops the least recently used ones if the budget is exceeded."""
        if known.rows is None:
            known.rows = rows
            self._encoded[known] = rows.nbytes
            self.bytes += rows.nbytes
        while self.bytes > self._budget and len(self._encoded) > 1:
            oldest, size = self._encoded.popitem(last=False)
            oldest.rows = None
            self.bytes -= size
