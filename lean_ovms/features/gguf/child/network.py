"""A GGUF file as a network with paged attention, of the inputs that `paged_attention_transformation` makes.

Files of known architectures and tensors are built here, others by openvino's frontend, whose input `inp_out_ids` is
network.LOGITS_INPUT.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ....engine.loading.network_inputs import network_input
from ....engine.paged.network import LOGITS_INPUT
from ....errors import StartError
from ..header import Header
from ..model_file import header_of
from . import attention, frontend
from .attention import Projected
from .decoder import building, builds

TOKENS = ("input_ids", "position_ids", LOGITS_INPUT)
"""The inputs with a number for each token, or for each wanted one."""
SEQUENCES = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")


class GgufWeights:
    """A network.WeightsSource: the network of a GGUF file."""

    def __init__(self, file: Path, *, adapted: bool = False) -> None:
        """Keeps what the network is made of.

        Args:
            file: The path of the file, of a split one that of its first part.
            adapted: Whether it gets inputs of adapters, which have a row for each token in each layer.
        """
        self._file = file
        self._adapted = adapted

    def read(self, core: Any) -> Any:
        """Implements WeightsSource.read."""
        return read(self._file, adapted=self._adapted)


class _State:
    """The inputs of sequences and caches, while a network is built."""

    def __init__(self) -> None:
        self._sequences = [network_input(name, [-1], np.int32) for name in SEQUENCES]
        self._longest = network_input("max_context_len", [], np.int32)
        self._caches: list[Any] = []

    @property
    def inputs(self) -> list[Any]:
        """All of them."""
        return [*self._sequences, self._longest, *self._caches]

    def attend(self, rows: Projected) -> Any:
        """Implements attention.Attend, with caches of its own for each attention."""
        number = len(self._caches) // 2
        pair = [network_input(f"{kind}_cache.{number}", [-1] * 4, ov.Type.dynamic) for kind in ("key", "value")]
        self._caches += pair
        return attention.paged(rows, [*pair, *self._sequences], self._longest)


def read(path: Path, *, adapted: bool = False) -> Any:
    """Returns the network of a file. adapted: all layers compute all tokens. Raises StartError, and RuntimeError."""
    header = header_of(path)
    return _built(path, header, adapted) if builds(header) else _by_frontend(path, header)


def _built(path: Path, header: Header, adapted: bool) -> Any:
    tokens, positions, wanted = (network_input(name, [-1], np.int64) for name in TOKENS)
    state = _State()
    with building(path, header, adapted=adapted) as decoder:
        hidden = decoder.hidden(tokens, positions, state.attend, None if adapted else wanted)
        logits = decoder.logits(ops.gather(hidden, wanted, np.array([0])) if adapted else hidden)
    return ov.Model([logits.output(0)], [tokens, positions, wanted, *state.inputs], "gguf")


def _by_frontend(path: Path, header: Header) -> Any:
    inputs = [network_input(name, [-1], np.int64) for name in TOKENS]
    state = _State()
    logits = frontend.logits(frontend.connected(path, header, inputs, state.attend))
    paged = ov.Model([ops.convert(logits[0], "f32").output(0)], [*inputs, *state.inputs], "gguf")
    _require_paged(paged, {node.get_friendly_name() for node in paged.get_parameters()}, logits)
    return paged


def _require_paged(model: Any, inputs: set[str], logits: list[Any]) -> None:
    """Raises StartError if anything of a sequence is left that is no paged attention."""
    left = sorted(
        node.get_friendly_name()
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Parameter" and node.get_friendly_name() not in inputs
    )
    if left or len(logits) != 1:
        raise StartError(f"its attention cannot be paged: the network needs {', '.join(left) or 'several outputs'}")
