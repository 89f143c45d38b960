"""LLaVA and Gemma 3: an image of any size becomes a square of the same number of tokens."""

from __future__ import annotations

import numpy as np

from ....engine.paged.network import Rows
from ....media import pixels
from ....media.pixels import Pixels, Size, SquareProcessor
from ....types import Image
from .family import Files, Layout


class Llava:
    """Encodes images for LLaVA and Gemma 3: a `family.VisionFamily`."""

    before, after = "", "\n"
    whole = pads = False
    """Whether tokens of an image attend to all others of it, and whether images are padded as do_pad says."""

    def __init__(self, files: Files) -> None:
        """Raises KeyError, TypeError and ValueError for files that are not as those of the family."""
        config, processor = files.config, files.processor
        vision = config["vision_config"]
        self.token_id = files.image_token
        self.side = int(vision["image_size"])
        """The pixels of the square's sides."""
        self.patches: int = self.side // int(vision["patch_size"])
        """The patches along each side."""
        self._networks = files.networks
        self._whole = config.get("vision_feature_select_strategy", "default") == "full"  # with the class token
        self._processor = SquareProcessor.read(processor)
        if processor.get("do_pad") and not self.pads:
            raise ValueError("its images are padded to squares")

    @property
    def tile_tokens(self) -> int:
        tokens: int = self.patches**2 + self._whole
        return tokens

    def layout(self, size: Size) -> Layout:
        return Layout(self.tile_tokens)

    def encode(self, image: Image) -> Rows:
        [rows] = self._features([self._processor.fitted(pixels.pixels(image))])
        return np.asarray(rows, np.float32)

    def _features(self, images: list[Pixels]) -> Rows:
        """Returns [images, tokens, hidden]."""
        inputs = {"pixel_values": np.stack([self._processor.scale(image) for image in images])}
        return self._networks.run("vision_embeddings", inputs)[0]


class Gemma3(Llava):
    """Gemma 3. The tokens of an image see each other in both directions, so all are computed in one step."""

    before, after = "\n\n<start_of_image>", "<end_of_image>\n\n"
    whole = True

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self._tokens = int(files.config["mm_tokens_per_image"])
        if files.processor.get("do_pan_and_scan"):
            raise ValueError("its images are cut into parts")

    @property
    def tile_tokens(self) -> int:
        return self._tokens
