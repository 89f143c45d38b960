"""Encodes images for InternVL: the tiles of an image, row by row, followed by the whole image if there are several.

Each is a square with the same number of tokens. The grid of tiles is the one with the aspect ratio of the image.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....engine.paged.network import Rows
from ....media import pixels
from ....media.pixels import Size
from ....types import Image
from . import pieces
from .family import Files, ImageFamily, Layout


class InternVl(ImageFamily):
    """A `family.VisionFamily` for InternVL."""

    before, after = "<img>", "</img>\n"

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        config, processor = files.config, files.processor
        vision = config["vision_config"]
        self._side = int(processor["size"]["height"])
        self._tokens = int(self._side // int(vision["patch_size"]) * float(config["downsample_ratio"])) ** 2
        splits = processor.get("crop_to_patches", False)
        least, most = (int(processor[f"{end}_patches"]) if splits else 1 for end in ("min", "max"))
        self._grids = grids(least, most)
        if self._side != int(vision["image_size"]):
            raise ValueError("its tiles are not as large as the encoder's images")

    def layout(self, size: Size) -> Layout:
        rows, columns = closest_grid(size, self._grids, self._side)
        tiles = rows * columns
        return Layout((tiles + (tiles > 1)) * self._tokens)

    def encode(self, image: Image) -> Rows:
        whole, side = pixels.pixels(image), self._side
        rows, columns = closest_grid((image.height, image.width), self._grids, side)
        squares = pieces.tiles(pixels.resized(whole, (rows * side, columns * side), self._resample), side)
        if len(squares) > 1:
            squares.append(pixels.resized(whole, (side, side), self._resample))
        return self._embeddings(self._values(squares))


def grids(least: int, most: int) -> list[Size]:
    """Returns the grids of tiles with so many tiles, as rows and columns, those with few tiles first."""
    sides = range(1, most + 1)
    found = [(rows, columns) for columns in sides for rows in sides if least <= rows * columns <= most]
    return sorted(found, key=lambda grid: grid[0] * grid[1])


def closest_grid(size: Size, known: Iterable[Size], side: int) -> Size:
    """Returns the rows and columns of the grid of tiles whose aspect ratio is closest to that of an image.

    Of several, the last is used whose pixels are less than twice those of the image.

    Args:
        size: The image's height and width.
        known: The grids, those with few tiles first.
        side: The side of a tile in pixels.
    """
    height, width = size
    best, least = (1, 1), float("inf")
    for rows, columns in known:
        difference = abs(width / height - columns / rows)
        if difference < least or (difference == least and height * width > 0.5 * side * side * rows * columns):
            best, least = (rows, columns), difference
    return best
