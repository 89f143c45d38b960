"""How many tokens images take, which GenAI tells only when a request is over: learned by looking at some sizes.

Most models give every image the same number; Qwen's families count patches of the size that they scale an image to.
Others are asked for a few sizes while loading, and what a request really had corrects what was believed of its size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..generation.image_prompts import TAG
from ..generation.pipeline import Handle, ImagePrompt

Size = tuple[int, int]
"""Height and width."""
SMALL: list[Size] = [(64, 64), (96, 160), (224, 224)]
LARGE: list[Size] = [(336, 448), (672, 672), (1344, 1344)]
MOST_KNOWN = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Patches:
    """Qwen's rule: an image is scaled to multiples of `unit` pixels within a number of pixels, a token each unit."""

    unit: int
    least: int
    most: int

    @classmethod
    def read(cls, model_dir: Path) -> Patches | None:
        """As preprocessor_config.json says; None if it says nothing of the kind."""
        try:
            said = json.loads((model_dir / "preprocessor_config.json").read_text("utf-8"))
            size = said.get("size") or {}
            least = said.get("min_pixels") or size["shortest_edge"]
            most = said.get("max_pixels") or size["longest_edge"]
            return cls(unit=said["patch_size"] * said["merge_size"], least=least, most=most)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def tokens(self, size: Size) -> int:
        """Of an image, without what stands around it: smart_resize as openvino_genai has it, halves rounded up."""
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
    """A contract.Sight of openvino_genai's pipelines."""

    def __init__(
        self,
        model_dir: Path,
        encode: Callable[[str, bool], list[int]],
        measure: Callable[[list[Size]], list[int]],
        counted: Callable[[Handle], int],
    ) -> None:
        """measure: prompt tokens of "a", an image of each size, and "b". counted: as in contract.Sight."""
        self._encode = encode
        self._counted = counted
        frame = len(encode("a", False)) + len(encode("b", False))
        self.known = {size: count - frame for size, count in zip(SMALL, measure(SMALL), strict=True)}
        self.fixed = self.known[SMALL[0]] if len(set(self.known.values())) == 1 else 0
        self.patches = None if self.fixed else self._patches(model_dir)
        if not self.fixed and self.patches is None:
            self.known |= {size: count - frame for size, count in zip(LARGE, measure(LARGE), strict=True)}

    def _patches(self, model_dir: Path) -> Callable[[Size], int] | None:
        """Qwen's rule, if it explains what was measured."""
        rule = Patches.read(model_dir)
        if rule is None:
            return None
        around = {self.known[size] - rule.tokens(size) for size in SMALL}
        frame = around.pop()
        return None if around else lambda size: rule.tokens(size) + frame

    def tokens(self, size: Size) -> int:
        """Of an image; of a size that is not known the most of those that are not much larger."""
        if self.fixed:
            return self.fixed
        if self.patches is not None:
            return self.patches(size)
        if size in self.known:
            return self.known[size]
        area = 2 * size[0] * size[1]
        smaller = [count for (height, width), count in self.known.items() if height * width <= area]
        return max(smaller or self.known.values())

    # --- contract

    def placeholder_ids(self, image_prompt: ImagePrompt) -> list[int]:
        ids: list[int] = []
        special, start = image_prompt.add_special_tokens, 0
        for tag in TAG.finditer(image_prompt.text):
            ids += self._words(image_prompt.text[start : tag.start()], special)
            image = image_prompt.images[int(tag[1])]
            ids += [-1 - (hash(image.pixels) >> 1 & (1 << 62) - 1)] * self.tokens((image.height, image.width))
            special, start = False, tag.end()
        return ids + self._words(image_prompt.text[start:], special)

    def _words(self, text: str, special: bool) -> list[int]:
        return self._encode(text, special) if text or special else []

    def prompt_tokens(self, handle: Handle) -> int:
        return self._counted(handle)

    def learn(self, image_prompt: ImagePrompt, tokens: int) -> None:
        sizes = {(image.height, image.width) for image in image_prompt.images}
        if self.fixed or self.patches is not None or len(sizes) != 1 or len(self.known) >= MOST_KNOWN:
            return
        (size,) = sizes
        if size not in self.known:
            words = len(self._words(TAG.sub("", image_prompt.text), image_prompt.add_special_tokens))
            self.known[size] = round((tokens - words) / len(image_prompt.images))
