"""The tokenizer of a pooling model: tokenizer.json where its ids are the exported tokenizer's, else that.

Measured 2026-11 under load: a text of 25 words takes 0.03 ms by tokenizer.json, and 1.8 ms by the exported graph, or
0.07 ms a text in a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import openvino as ov

from ..loading import json_tokenizer
from ..loading.graph_tokenizer import GraphTokenizer


class PoolingTokenizer(GraphTokenizer):
    """The tokenizer of a pooling model. single: ids that the model's tokenizer puts before and after a text."""

    def __init__(self, model_dir: Path, core: ov.Core) -> None:
        """Raises StartError."""
        super().__init__(model_dir, core)
        self._json = json_tokenizer.load(model_dir, super().encode)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return super().encode(texts) if self._json is None else [self._json.encode(text) for text in texts]
