"""A GGUF file as an engine.paged.network.EngineFile: its tokenizer and its networks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....engine.paged.network import NetworkEdit, NotPageable, WeightsSource
from . import network, pooling_network
from .tokenizer import GgufTokenizer


class GgufEngineFile:
    """A model that is one GGUF file, or a split one by its first part."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tokenizer(self) -> GgufTokenizer:
        return GgufTokenizer(self._path)

    def weights(self, edits: Sequence[NetworkEdit], *, trees: bool, adapted: bool, exact: bool) -> WeightsSource:
        """Implements EngineFile.weights."""
        if edits:
            raise NotPageable("the hidden states of a GGUF file's network are unknown")
        return network.GgufWeights(self._path, adapted=adapted, exact=exact)

    def pooling_network(self, output: str) -> Any:
        """Implements EngineFile.pooling_network."""
        return pooling_network.read(self._path, output)
