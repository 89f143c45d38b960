"""Encodes images for Qwen2-VL and Qwen2.5-VL: an image of any size has a token for each square of patches.

Consecutive frames of a video share their patches; an image is encoded as that many equal frames.

The exports have two networks: one embeds patches, the other ("merger") computes the rest. The other inputs of the
merger are computed here: rotary angles of the patches, masks, and for Qwen2.5 the order of the windows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....engine.paged.network import Rows
from ....errors import BadRequest
from ....media import pixels
from ....media.pixels import Pixels, Scale, Size
from ....types import Image, Json
from ....util.resources import free_memory_bytes
from . import pieces
from .family import Files, ImageFamily, Layout, Part

MAX_ASPECT = 200
TOKENS_PER_SECOND = 4
THETA = 10000.0
MASK_SHARE = 0.5
"""The part of the free memory that the mask of an image's windows may take. Its size is the square of the number of
patches: 15 GB for a photo of 12 megapixels, which the settings of Qwen2.5-VL's processor allow."""


class SquaresOfPatches(ImageFamily):
    """The base class of `family.VisionFamily` for models whose tokens are squares of patches with rotary angles."""

    before, after = "<|vision_start|>", "<|vision_end|>"

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        config, processor = files.config, files.processor
        vision = config["vision_config"]
        self._patch, self._merge = int(processor["patch_size"]), int(processor["merge_size"])
        self.repeat = int(processor["temporal_patch_size"])
        """The number of frames that share their patches."""
        self.unit = self._patch * self._merge
        """The side of a token's square in pixels."""
        self._limits = _limits(processor)
        width = vision.get("embed_dim") or vision["hidden_size"]
        turns = width // int(vision["num_heads"]) // 2
        self._frequencies = 1.0 / THETA ** (np.arange(0, turns, 2, dtype=np.float32) / turns)

    def layout(self, size: Size) -> Layout:
        height, width = (side // self.unit for side in self.resized(size))
        return Layout(height * width, height, width)

    def resized(self, size: Size) -> Size:
        return self.fitted(size, self._limits)

    def fitted(self, size: Size, limits: Size, frames: int = 1, shown: int = 1) -> Size:
        """Returns the height and width to which an image, or each frame of a video, is scaled.

        Both are multiples of the unit, and the number of pixels is within the limits if possible.

        Args:
            size: The height and width of the image.
            limits: The fewest and the most pixels of all frames together.
            frames: The number of frames from which the scale is computed.
            shown: The number of frames whose pixels are compared with the limits, including repeated ones.

        Raises:
            BadRequest: The image is too narrow or too wide.
        """
        height, width = size
        least, most = limits
        if max(size) > MAX_ASPECT * min(size):
            raise BadRequest(f"an image is more than {MAX_ASPECT} times as long as wide")
        unit = self.unit
        tall, wide = (round(side / unit) * unit for side in size)
        if shown * tall * wide > most:
            by = math.sqrt(frames * height * width / most)
            tall, wide = (max(unit, math.floor(side / by / unit) * unit) for side in size)
        elif shown * tall * wide < least:
            by = math.sqrt(least / (frames * height * width))
            tall, wide = (math.ceil(side * by / unit) * unit for side in size)
        return tall, wide

    def encode(self, image: Image) -> Rows:
        return self._encoded(
            [pixels.pixels(image)] * self.repeat, self.resized((image.height, image.width)), self._scale
        )

    def _encoded(self, frames: list[Pixels], size: Size, scale: Scale) -> Rows:
        values = np.stack([scale(pixels.resized(frame, size, self._resample)) for frame in frames])
        grid = size[0] // self._patch, size[1] // self._patch
        inputs = {
            "hidden_states": self._embedded(values, grid),
            "rotary_pos_emb": self._angles(grid),
            **self._masks(grid),
        }
        rows, *deeper = self._networks.run("vision_embeddings_merger", inputs)
        return np.concatenate([rows, *(layer for layers in deeper for layer in layers)], axis=1)

    def _embedded(self, values: NDArray[np.float32], grid: Size) -> NDArray[np.float32]:
        """Returns the embeddings of an image's patches."""
        return self._networks.run("vision_embeddings", {"hidden_states": self.patches(values)})[0]

    def patches(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns the patches [patches, RGB x frames x patch x patch]. Those of one token are adjacent."""
        side, merge = self._patch, self._merge
        count, _, height, width = values.shape
        parts = values.reshape(
            count, 3, height // self.unit, merge, side, width // self.unit, merge, side
        )  # frames, colors, rows of tokens, patches in a token, pixels in a patch, then columns likewise
        parts = parts.transpose(2, 5, 3, 6, 1, 0, 4, 7)
        return np.ascontiguousarray(parts.reshape(height // side * (width // side), -1))

    def _masks(self, grid: Size) -> dict[str, NDArray[Any]]:
        """Returns the attention mask. It is a single 0, since all patches of an image attend to each other."""
        return {"attention_mask": np.zeros((1, 1, 1), np.float32)}

    def _angles(self, grid: Size) -> NDArray[np.float32]:
        """Returns the rotary angles of each patch, computed from its row and column."""
        places = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"), axis=-1).astype(np.float32)
        angles = self._by_tokens(places)[:, :, None] * self._frequencies
        return np.ascontiguousarray(angles.reshape(len(angles), -1), np.float32)

    def _by_tokens(self, patches: NDArray[Any]) -> NDArray[Any]:
        """Sorts the patches [rows, columns, numbers] of an image so that those of one token are adjacent."""
        rows, columns, width = patches.shape
        merge = self._merge
        parts = patches.reshape(rows // merge, merge, columns // merge, merge, width)
        ordered: NDArray[Any] = parts.transpose(0, 2, 1, 3, 4).reshape(-1, width)
        return ordered


def _limits(fields: Json) -> Size:
    """Returns the fewest and the most pixels of an image, from the settings of a processor."""
    size = fields.get("size") or {}
    return int(fields.get("min_pixels") or size["shortest_edge"]), int(fields.get("max_pixels") or size["longest_edge"])


class Qwen2Vl(SquaresOfPatches):
    """A `family.VideoFamily` for Qwen2-VL."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self.video_limits, self._video_scale = _limits(files.video), Scale.read(files.video)

    def split(self, video: Image) -> list[Part]:
        """Returns the parts of a video, which are all between one pair of tokens; each part has its time."""
        height, width = (side // self.unit for side in self.fitted((video.height, video.width), self.video_limits))
        groups, seconds = pieces.groups(video, self.repeat), self.repeat * video.seconds / len(video.times)
        return [
            Part(
                self.before * (number == 0),
                group,
                Layout(height * width, height, width, time=int(number * self._interval(seconds)) if number else None),
                self.after * (number == len(groups) - 1),
            )
            for number, group in enumerate(groups)
        ]

    def _interval(self, seconds: float) -> float:
        """Returns the difference between the positions of successive parts, so many seconds apart."""
        return 1

    def encode_frames(self, frames: Image, layout: Layout) -> Rows:
        size = layout.height * self.unit, layout.width * self.unit
        return self._encoded(pieces.frames(frames), size, self._video_scale)


class Qwen25Vl(Qwen2Vl):
    """A `family.VideoFamily` for Qwen2.5-VL. In most layers, patches attend only to those in the same window."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        vision = files.config["vision_config"]
        self._window = int(vision["window_size"]) // self.unit
        self._per_second = float(vision.get("tokens_per_second", TOKENS_PER_SECOND))

    def _interval(self, seconds: float) -> float:
        return self._per_second * seconds

    def _masks(self, grid: Size) -> dict[str, NDArray[Any]]:
        order, windows = self._by_windows((grid[0] // self._merge, grid[1] // self._merge))
        patches = grid[0] * grid[1]
        size = patches**2 * np.dtype(np.float32).itemsize
        if size > MASK_SHARE * free_memory_bytes():
            raise BadRequest(
                f"an image of {patches} patches takes {size / 1e9:.1f} GB of memory in this model's encoder, more than "
                "this server can spare; send a smaller image"
            )
        apart = np.full((1, patches, patches), -np.inf, np.float32)
        sizes = np.bincount(windows) * self._merge**2
        for end, count in zip(np.cumsum(sizes), sizes, strict=True):
            apart[:, end - count : end, end - count : end] = 0
        return {**super()._masks(grid), "window_attention_mask": apart, "window_index": order}

    def _by_windows(self, grid: Size) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the indices of an image's tokens, sorted by window, and the number of each one's window."""
        rows, columns = np.divmod(np.arange(grid[0] * grid[1]), grid[1])
        windows = rows // self._window * (grid[1] // self._window + 1) + columns // self._window
        order = np.argsort(windows, kind="stable")
        return order, windows[order]
