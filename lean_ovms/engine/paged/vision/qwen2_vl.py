"""Qwen2-VL and Qwen2.5-VL: an image of any size, a token for each square of patches, in rows and columns.

Their exports have two networks: one makes embeddings of patches, one does everything else ("merger"). What the second
gets besides is computed here: rotary angles of the patches, masks, and for Qwen2.5 the order by windows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import BadRequest
from ....types import Image
from . import pixels
from .family import Files, Layout, Rows
from .pixels import Scale, Size

MAX_ASPECT = 200
THETA = 10000.0


class Qwen2Vl:
    """A family.VisionFamily. unit: pixels of a side of what becomes a token."""

    before, after = "<|vision_start|>", "<|vision_end|>"
    whole = False

    def __init__(self, files: Files) -> None:
        """Raises KeyError, TypeError and ValueError for files that are not as those of the family."""
        config, processor = files.config, files.processor
        vision = config["vision_config"]
        self.token_id = int(config["image_token_id"])
        self._networks = files.networks
        self._patch, self._merge = int(processor["patch_size"]), int(processor["merge_size"])
        self._repeat = int(processor["temporal_patch_size"])
        self.unit = self._patch * self._merge
        size = processor.get("size") or {}
        self._least = int(processor.get("min_pixels") or size["shortest_edge"])
        self._most = int(processor.get("max_pixels") or size["longest_edge"])
        self._scale = Scale.read(processor)
        self._resample = int(processor.get("resample", pixels.BICUBIC))
        width = vision.get("embed_dim") or vision["hidden_size"]
        turns = width // int(vision["num_heads"]) // 2
        self._frequencies = 1.0 / THETA ** (np.arange(0, turns, 2, dtype=np.float32) / turns)

    def layout(self, size: Size) -> Layout:
        height, width = (side // self.unit for side in self.resized(size))
        return Layout(height * width, height, width)

    def resized(self, size: Size) -> Size:
        """Returns the height and the width to which an image is scaled: multiples of the unit, within the limits."""
        height, width = size
        if max(size) > MAX_ASPECT * min(size):
            raise BadRequest(f"an image is more than {MAX_ASPECT} times as long as wide")
        unit = self.unit
        tall, wide = (round(side / unit) * unit for side in size)
        if tall * wide > self._most:
            by = math.sqrt(height * width / self._most)
            tall, wide = (max(unit, math.floor(side / by / unit) * unit) for side in size)
        elif tall * wide < self._least:
            by = math.sqrt(self._least / (height * width))
            tall, wide = (math.ceil(side * by / unit) * unit for side in size)
        return tall, wide

    def encode(self, image: Image) -> Rows:
        size = self.resized((image.height, image.width))
        values = self._scale(pixels.resized(pixels.pixels(image), size, self._resample))
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
        """Returns [patches, RGB x frames x patch x patch]; those of one token are next to each other."""
        side, merge = self._patch, self._merge
        _, height, width = values.shape
        frames = np.repeat(values[None], self._repeat, axis=0)
        parts = frames.reshape(
            self._repeat, 3, height // self.unit, merge, side, width // self.unit, merge, side
        )  # frames, colors, rows, rows in a token, in a patch, columns ...
        parts = parts.transpose(2, 5, 3, 6, 1, 0, 4, 7)
        return np.ascontiguousarray(parts.reshape(height // side * (width // side), -1))

    def _masks(self, grid: Size) -> dict[str, NDArray[Any]]:
        """Returns the masks of attention: every patch sees all others of its image, so one number stands for all."""
        return {"attention_mask": np.zeros((1, 1, 1), np.float32)}

    def _angles(self, grid: Size) -> NDArray[np.float32]:
        """Returns the rotary angles of each patch by its row and its column."""
        places = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"), axis=-1).astype(np.float32)
        angles = self._by_tokens(places)[:, :, None] * self._frequencies
        return np.ascontiguousarray(angles.reshape(len(angles), -1), np.float32)

    def _by_tokens(self, patches: NDArray[Any]) -> NDArray[Any]:
        """Returns the patches [rows, columns, numbers] of an image in the order in which they become tokens."""
        rows, columns, width = patches.shape
        merge = self._merge
        parts = patches.reshape(rows // merge, merge, columns // merge, merge, width)
        ordered: NDArray[Any] = parts.transpose(0, 2, 1, 3, 4).reshape(-1, width)
        return ordered


class Qwen25Vl(Qwen2Vl):
    """A family.VisionFamily. Most layers see windows of an image only."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self._window = int(files.config["vision_config"]["window_size"]) // self.unit

    def _masks(self, grid: Size) -> dict[str, NDArray[Any]]:
        order, windows = self._by_windows((grid[0] // self._merge, grid[1] // self._merge))
        of_patches = np.repeat(windows, self._merge**2)
        apart = of_patches[:, None] != of_patches
        return {
            **super()._masks(grid),
            "window_attention_mask": np.where(apart, np.float32(-np.inf), np.float32(0))[None],
            "window_index": order,
        }

    def _by_windows(self, grid: Size) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the places of an image's tokens in the order of windows, and the number of each one's window."""
        rows, columns = np.divmod(np.arange(grid[0] * grid[1]), grid[1])
        windows = rows // self._window * (grid[1] // self._window + 1) + columns // self._window
        order = np.argsort(windows, kind="stable")
        return order, windows[order]
