"""Gemma 3: an image of any size becomes a square of the same number of tokens, which see each other in both directions.

So all tokens of an image are computed in one step.
"""

from __future__ import annotations

from .family import Files
from .llava import Llava


class Gemma3(Llava):
    """A family.VisionFamily."""

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
