"""Models that are one file: what the engine process asks of them. Their forms are rows of the features' manifests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from ...composition import compose
from ...manifest import named
from ...types.engine import Vocabulary
from ..loading.json_tokenizer import JsonTokenizer
from .network import NetworkEdit, WeightsSource


class FileTokenizer(Protocol):
    """The tokenizer of a file; of openvino_genai.Tokenizer it has what loading.model_info and the pipelines use."""

    library: JsonTokenizer
    """What tokenizes."""
    vocabulary: Vocabulary
    """The bytes of the tokens."""
    single: tuple[tuple[int, ...], tuple[int, ...]]
    """The ids before and after a text."""
    ends: set[int]
    """The tokens that end an answer."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Encodes as LoadedModel.encode does."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        """Returns the text of ids."""


class EngineFile(Protocol):
    """A model that is one file."""

    def tokenizer(self) -> FileTokenizer:
        """Returns the tokenizer. Raises StartError."""

    def weights(self, edits: Sequence[NetworkEdit], *, trees: bool, adapted: bool, exact: bool) -> WeightsSource:
        """Returns the source of its network; the file is read later.

        Args:
            edits: What changes the network, in this order, before its logits are limited to wanted tokens.
            trees: Whether it gets the input TREE_MASK, where its attention allows that.
            adapted: Whether it gets inputs of adapters.
            exact: Whether weights may not be rounded for speed.

        Raises:
            NotPageable: Networks of this kind of file cannot be changed so.
        """

    def pooling_network(self, output: str) -> Any:
        """Returns an openvino.Model of the form that optimum-cli exports of a pooling model.

        Args:
            output: The name of its output: logits or last_hidden_state.

        Raises:
            StartError: The file cannot be served.
            RuntimeError: OpenVINO cannot make the network.
        """


def of(path: Path) -> EngineFile | None:
    """Returns the model that a file is; None: it is a directory, or a file of an unknown form."""
    row = compose().format_of(path)
    found: EngineFile | None = None if row is None else named(row.package, row.network)(path)
    return found
