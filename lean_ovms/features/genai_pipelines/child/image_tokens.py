"""Estimates the number of an image's tokens, which GenAI reports only when a request is finished.

Most models have the same number for every image. Qwen's models scale an image and count its patches. For other models a
few sizes are measured while the model is loaded, and the exact count of a finished request corrects the estimate.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ....engine.generation import image_prompts
from ....engine.generation.image_prompts import TAG, ImagePrompt
from ....util.files import read_bytes
from .guard.pipeline import Handle

Size = tuple[int, int]
"""Height and width."""
SMALL: list[Size] = [(64, 64), (96, 160), (224, 224)]
LARGE: list[Size] = [(336, 448), (672, 672), (1344, 1344)]
MAX_KNOWN = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Patches:
    """Qwen's rule: an image's sides are scaled to multiples of `unit` pixels; each square of that size is a token."""

    unit: int
    """The side of a token's square in pixels."""
    least: int
    """The fewest pixels of a scaled image."""
    most: int
    """The most pixels of a scaled image."""

    @classmethod
    def read(cls, model_dir: Path) -> Patches | None:
        """Reads preprocessor_config.json; returns None if it has no such fields."""
        try:
            fields = json.loads(read_bytes(model_dir / "preprocessor_config.json"))
            size = fields.get("size") or {}
            least = fields.get("min_pixels") or size["shortest_edge"]
            most = fields.get("max_pixels") or size["longest_edge"]
            return cls(unit=fields["patch_size"] * fields["merge_size"], least=least, most=most)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def tokens(self, size: Size) -> int:
        """Returns the number of an image's tokens without those around it, like openvino_genai's smart_resize."""
        height, width = size
        unit = self.unit
        rows, columns = (math.floor(side / unit + 0.5) * unit for side in size)
        if rows * columns > self.most:
            by = math.sqrt(height * width / self.most)
            rows, columns = (math.floor(side / by / unit) * unit for side in size)
        elif rows * columns < self.least:
            by = math.sqrt(self.least / (height * width))
            rows, columns = (math.ceil(side * by / unit) * unit for side in size)
        return rows // unit * (columns // unit)


class GenAiImageTokens:
    """Counts the tokens of images for openvino_genai's pipelines."""

    takes_ids = False
    parse = staticmethod(image_prompts.parse)
    audio_tokens: Callable[[bytes], int] | None = None
    """Returns the number of tokens of audio, including those around it; None if the model takes no audio."""

    def __init__(
        self,
        model_dir: Path,
        encode: Callable[[str, bool], list[int]],
        measure: Callable[[list[Size]], list[int]],
        prompt_tokens: Callable[[Handle], int],
    ) -> None:
        """Measures a few sizes of images, or more if the number of tokens depends on the size by an unknown rule.

        Args:
            model_dir: The directory of the model.
            encode: Returns the token ids of a text, with or without special tokens.
            measure: Returns the number of tokens of the prompt "a", an image of this size, "b" for each size.
            prompt_tokens: Returns the exact number of prompt tokens of a finished request, 0 while it runs.
        """
        self._encode = encode
        self.prompt_tokens = prompt_tokens
        frame = len(encode("a", False)) + len(encode("b", False))
        self.known = {size: count - frame for size, count in zip(SMALL, measure(SMALL), strict=True)}
        self.fixed = self.known[SMALL[0]] if len(set(self.known.values())) == 1 else 0
        self.patches = None if self.fixed else self._patches(model_dir)
        if not self.fixed and self.patches is None:
            self.known |= {size: count - frame for size, count in zip(LARGE, measure(LARGE), strict=True)}

    def _patches(self, model_dir: Path) -> Callable[[Size], int] | None:
        """Returns Qwen's rule for an image's number of tokens; None if it does not agree with the measured sizes."""
        rule = Patches.read(model_dir)
        if rule is None:
            return None
        around = {self.known[size] - rule.tokens(size) for size in SMALL}
        frame = around.pop()
        return None if around else lambda size: rule.tokens(size) + frame

    def tokens(self, size: Size) -> int:
        """Returns an image's number of tokens; for an unknown size the most of known sizes not much larger."""
        if self.fixed:
            return self.fixed
        if self.patches is not None:
            return self.patches(size)
        if size in self.known:
            return self.known[size]
        area = 2 * size[0] * size[1]
        smaller = [count for (height, width), count in self.known.items() if height * width <= area]
        return max(smaller or self.known.values())

    def placeholder_ids(self, image_prompt: ImagePrompt) -> list[int]:
        ids: list[int] = []
        special, start = image_prompt.add_special_tokens, 0
        for tag in TAG.finditer(image_prompt.text):
            ids += self._words(image_prompt.text[start : tag.start()], special)
            if tag[2] and self.audio_tokens is not None:
                ids += [-1] * self.audio_tokens(image_prompt.audio[int(tag[2])])
            else:
                image = image_prompt.images[int(tag[1])]
                ids += [-1 - (hash(image.pixels) >> 1 & (1 << 62) - 1)] * self.tokens((image.height, image.width))
            special, start = False, tag.end()
        return ids + self._words(image_prompt.text[start:], special)

    def _words(self, text: str, special: bool) -> list[int]:
        return self._encode(text, special) if text or special else []

    def learn(self, image_prompt: ImagePrompt, tokens: int) -> None:
        sizes = {(image.height, image.width) for image in image_prompt.images}
        if self.fixed or self.patches is not None or len(sizes) != 1 or len(self.known) >= MAX_KNOWN:
            return
        (size,) = sizes
        if size not in self.known:
            words = len(self._words(TAG.sub("", image_prompt.text), image_prompt.add_special_tokens))
            self.known[size] = round((tokens - words) / len(image_prompt.images))
