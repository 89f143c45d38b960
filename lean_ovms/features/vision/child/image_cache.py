"""The images that were encoded last, by their content.

Each has a number, which stands for its content in prompts: -1 - number is the id of all its tokens, so that the prefix
cache tells images apart as it tells texts apart.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ....engine.paged.network import Rows
from ....errors import BadRequest
from ....types import Image
from .family import Layout, VisionFamily

MAX_KNOWN = 16384
"""Images whose numbers are remembered, some hundred bytes each."""


@dataclass(slots=True, eq=False)
class KnownImage:
    """An image that prompts have had."""

    number: int
    """The number that stands for its content in prompts."""
    layout: Layout
    """The number of its tokens, and their places."""
    rows: Rows | None = None
    """The embeddings; None before it is encoded, and when they have been dropped."""

    @property
    def token(self) -> int:
        """The id in the places of its tokens."""
        return -1 - self.number


class ImageCache:
    """Finds images by their content. Used by the loop's thread."""

    def __init__(self, family: VisionFamily, budget: int) -> None:
        """Begins empty.

        Args:
            family: Encodes the images.
            budget: The most bytes of embeddings that are kept.
        """
        self._family = family
        self._budget = budget
        self._images: OrderedDict[tuple[str, str], KnownImage] = OrderedDict()  # the latest are last
        self._by_token: dict[int, KnownImage] = {}
        self._encoded: OrderedDict[KnownImage, int] = OrderedDict()  # with the bytes of their rows
        self._last = 0
        self.bytes = 0

    def get(self, image: Image, salt: str = "", layout: Layout | None = None) -> KnownImage:
        """Returns what is known of an image.

        Args:
            image: The image.
            salt: Images are known to each other only with the same salt.
            layout: The number of its tokens, and their places; None: the model family finds them.

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
        """Returns the image whose tokens have this id, of those that `get` returned last."""
        return self._by_token[token]

    def store(self, known: KnownImage, rows: Rows) -> None:
        """Keeps an image's embeddings, in the place of those that were not used for longest."""
        if known.rows is None:
            known.rows = rows
            self._encoded[known] = rows.nbytes
            self.bytes += rows.nbytes
        while self.bytes > self._budget and len(self._encoded) > 1:
            oldest, size = self._encoded.popitem(last=False)
            oldest.rows = None
            self.bytes -= size
