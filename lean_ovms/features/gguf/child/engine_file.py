"""A GGUF file as an engine.paged.network.EngineFile: its tokenizer and its networks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....config import EngineConfig
from ....engine.paged.network import NetworkEdit, NotPageable, VisionFile, WeightsSource
from .. import mmproj_file
from ..feature import GgufOptions
from . import network, pooling_network
from .tokenizer import GgufTokenizer


class GgufEngineFile:
    """A model that is one GGUF file, or a split one by its first part."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tokenizer(self) -> GgufTokenizer:
        return GgufTokenizer(self._path)

    def vision_file(self, config: EngineConfig) -> VisionFile | None:
        """Implements EngineFile.vision_file."""
        option = config.of(GgufOptions).mmproj
        paths = mmproj_file.find(self._path, option)
        if not paths:
            return None
        from .mmproj import Mmproj  # models that read text only do without

        return Mmproj.first(paths, self._path, named=bool(option))

    def weights(
        self, edits: Sequence[NetworkEdit], *, trees: bool, adapted: bool, exact: bool, images: bool
    ) -> WeightsSource:
        """Implements EngineFile.weights."""
        if edits:
            raise NotPageable("the hidden states of a GGUF file's network are unknown")
        return network.GgufWeights(self._path, adapted=adapted, exact=exact, images=images)

    def pooling_network(self, output: str) -> Any:
        """Implements EngineFile.pooling_network."""
        return pooling_network.read(self._path, output)
