"""Encodes images for Idefics 3 and SmolVLM: the tiles of an image, row by row, followed by the whole image.

Each is a square with the same number of tokens, after a text that says which tile it is.
"""

from __future__ import annotations

import math

import numpy as np

from ....engine.paged.network import Rows
from ....media import pixels
from ....media.pixels import Pixels, Size
from ....types import Image
from . import pieces
from .family import Files, ImageFamily, Layout, Part, clock

MAX_SIDE = 4096
EDGE = "<fake_token_around_image>"
WHOLE = f"{EDGE}<global-img>"
ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = "", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"


class Tiled(ImageFamily):
    """A `family.VisionFamily` for Idefics 3, and for SmolVLM without videos."""

    after = EDGE
    resample = pixels.LANCZOS

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        config, processor = files.config, files.processor
        self._side = int(processor["max_image_size"]["longest_edge"])
        self._longest = int(processor["size"]["longest_edge"])
        self._splits = bool(processor.get("do_image_splitting", True))
        self._patches = self._side // int(config["vision_config"]["patch_size"])
        self._tokens = self._patches**2 // int(config["scale_factor"]) ** 2
        if self._side != int(config["vision_config"]["image_size"]):
            raise ValueError("its tiles are not as large as the encoder's images")

    def layout(self, size: Size) -> Layout:
        rows, columns = self._grid(self._resized(size, self._longest))
        texts = [
            ("\n" * (row > 0 and column == 0) + f"{EDGE}<row_{row + 1}_col_{column + 1}>", self._tokens)
            for row in range(rows)
            for column in range(columns)
        ]
        texts.append(("\n\n" * bool(texts) + WHOLE, self._tokens))
        return Layout(len(texts) * self._tokens, texts=tuple(texts))

    def encode(self, image: Image) -> Rows:
        resized, side = self._resized((image.height, image.width), self._longest), self._side
        whole = pixels.resized(pixels.pixels(image), resized, self._resample)
        rows, columns = self._grid(resized)
        parts = list[Pixels]()
        if rows:
            whole = pixels.resized(whole, (rows * side, columns * side), self._resample)
            parts = pieces.tiles(whole, side)
        parts.append(pixels.resized(whole, (side, side), self._resample))
        return self._encoded(parts)

    def _encoded(self, squares: list[Pixels]) -> Rows:
        patches = self._patches
        return self._embeddings(
            self._values(squares),
            patch_attention_mask=np.ones((len(squares), patches, patches), bool),
            patch_position_ids=np.tile(np.arange(patches**2), (len(squares), 1)),
        )

    def _resized(self, size: Size, longest: int) -> Size:
        """Returns the height and width to which an image is scaled before it is tiled; `longest` limits each side."""
        height, width = size
        aspect = width / height
        if width >= height:
            height, width = int(longest / aspect), longest
            height += height % 2
        else:
            height, width = longest, int(longest * aspect)
            width += width % 2
        height, width = max(height, 1), max(width, 1)
        if width >= height and width > MAX_SIDE:
            height, width = int(MAX_SIDE / (width / height)), MAX_SIDE
        elif height > width and height > MAX_SIDE:
            height, width = MAX_SIDE, int(MAX_SIDE * (width / height))
        return max(height, 1), max(width, 1)

    def _grid(self, resized: Size) -> Size:
        """Returns the number of rows and columns of tiles; (0, 0) if the image is not divided."""
        height, width, side = *resized, self._side
        if not self._splits:
            return 0, 0
        aspect = width / height
        if width >= height:
            columns = math.ceil(width / side)
            rows = math.ceil(int(columns * side / aspect) / side)
        else:
            rows = math.ceil(height / side)
            columns = math.ceil(int(rows * side * aspect) / side)
        return (rows, columns) if rows * columns > 1 else (0, 0)


class SmolVlm(Tiled):
    """A `family.VideoFamily` for SmolVLM. The frames of a video are undivided images after texts with their times."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        size = files.video["video_sampling"]["video_size"] if "video_sampling" in files.video else files.video["size"]
        self._longest_of_video = min(int(size["longest_edge"]), MAX_SIDE)

    def split(self, video: Image) -> list[Part]:
        seconds, frames = int(video.seconds), pieces.groups(video, 1)
        length = f"{seconds // 3600}:{clock(seconds % 3600)} [H:MM:SS]"
        intro = f"You are provided the following series of {in_words(len(frames))} frames from a {length} video.\n"
        layout = Layout(self._tokens, texts=((WHOLE, self._tokens),))
        return [
            Part(
                f"{intro * (number == 0)}\nFrame from {clock(frame.times[0])}:",
                frame,
                layout,
                EDGE + "\n\n" * (number == len(frames) - 1),
            )
            for number, frame in enumerate(frames)
        ]

    def encode_frames(self, frames: Image, layout: Layout) -> Rows:
        size = self._resized((frames.height, frames.width), self._longest_of_video)
        whole = pixels.resized(pixels.pixels(frames), size, self._resample)
        return self._encoded([pixels.resized(whole, (self._side, self._side), self._resample)])


def in_words(number: int) -> str:
    """Returns a number below a million in English words, in the same form as the package num2words."""
    if number < 20:
        return ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens] + f"-{ONES[ones]}" * (ones > 0)
    unit, word = (100, "hundred") if number < 1000 else (1000, "thousand")
    count, rest = divmod(number, unit)
    joint = " and " if rest < 100 else ", "
    return f"{in_words(count)} {word}" + (joint + in_words(rest)) * (rest > 0)
