"""A GGUF file as a network with paged attention, with the inputs that `paged_attention_transformation` would make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ....engine.paged.network import LOGITS_INPUT, network_input
from ....errors import StartError
from ..architectures import ARCHITECTURES
from ..model_file import header_of
from . import attention, paged_states
from .attention import Projected
from .decoder import FileDecoder
from .file_attention import attention_cap
from .layers import Floats
from .tensors import opened

TOKENS = ("input_ids", "position_ids", LOGITS_INPUT)
"""The inputs with a number for each token, or for each token whose output is needed."""
SEQUENCES = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
IDLE = 16
"""The size of the head of an attention that adds nothing."""
SHARED_BYTES = 64
"""The size of the constants of which equal ones are one: numbers, axes and shapes, no weights."""


class GgufWeights:
    """The source of the engine's network for a GGUF file."""

    def __init__(self, file: Path, *, adapted: bool = False, exact: bool = False, images: bool = False) -> None:
        """Keeps the file and how it is read.

        Args:
            file: The path of the file; of a split file, that of its first part.
            adapted: Whether adapters will be added to the network, which change each layer for every token.
            exact: Whether weights must keep their values, instead of being requantized where that is faster.
            images: Whether the network gets inputs for images.
        """
        self._file = file
        self._adapted = adapted
        self._exact = exact
        self._images = images

    @property
    def attention_cap(self) -> float:
        """Returns the soft cap of the attention logits of the network; 0 if there is none."""
        return attention_cap(header_of(self._file))

    def read(self, core: Any) -> Any:
        """Builds the network of the file."""
        return read(self._file, adapted=self._adapted, exact=self._exact, images=self._images)


class _State:
    """The network's inputs for sequences, caches and states, to which the layers are connected while it is built."""

    def __init__(self, marks: Any = None, *, in_windows: bool = False) -> None:
        """Makes the inputs of sequences and of states; those of caches are added by the layers.

        Args:
            marks: The input that marks tokens of images with bidirectional attention; None if there are no such tokens.
            in_windows: Whether only layers with a sliding window have bidirectional attention.
        """
        self._marks, self._in_windows = marks, in_windows
        self._sequences = [network_input(name, [-1], np.int32) for name in SEQUENCES]
        self._longest = network_input("max_context_len", [], np.int32)
        self._caches: list[Any] = []
        self._pairs: dict[str, list[Any]] = {}  # KV caches, by the name of the keys' tensor
        self._slots = [network_input(name, [-1], np.int32) for name in paged_states.STATES]
        self._tables: list[Any] = []
        self._made = Counter[Any]()

    @property
    def inputs(self) -> list[Any]:
        """The inputs that the network uses."""
        states = [*self._slots, *self._tables] if self._tables else []
        return [*self._sequences, self._longest, *self._caches, *states]

    @property
    def _begins(self) -> Any:
        """The input with the index of each sequence's first token among the tokens."""
        return self._sequences[SEQUENCES.index("subsequence_begins")]

    def convolve(self, values: Any, weights: Floats, bias: Floats | None = None) -> Any:
        """Returns a causal convolution whose last values are kept in a table of states."""
        return self._with_table(paged_states.convolution, values, weights, bias)

    def remember(self, rows: list[Any]) -> Any:
        """Returns the results of a layer of gated delta nets, whose states are kept in a table."""
        return self._with_table(paged_states.delta_net, rows)

    def scan(self, rows: list[Any]) -> Any:
        """Returns the results of a layer of state spaces, whose states are kept in a table."""
        return self._with_table(paged_states.state_space, rows)

    def _with_table(self, make: Callable[..., paged_states.Found], *values: Any) -> Any:
        """Returns the result of an operation with a state per sequence, and adds an input for its table of states.

        Args:
            make: Makes the operation.
            values: The inputs of the operation.
        """
        found, table = make(*values, self._begins, self._slots, self._made[make])
        self._made[make] += 1
        self._tables.append(table)
        return found

    def attend(self, rows: Projected) -> Any:
        """Returns the result of a paged attention. Layers with the same keys share a pair of caches.

        Each of these layers writes the same keys and values into the caches.
        """
        keys, number = rows.values[1].get_friendly_name(), len(self._pairs)
        if keys not in self._pairs:
            pair = [network_input(f"{kind}_cache.{number}", [-1] * 4, ov.Type.dynamic) for kind in ("key", "value")]
            self._pairs[keys] = pair
            self._caches += pair
        marks = self._marks if rows.window or not self._in_windows else None
        return attention.paged(rows, [*self._pairs[keys], *self._sequences], self._longest, marks)

    def with_attention(self, x: Any, tokens: Any) -> Any:
        """Returns x, to which an attention to nothing is added if the network has no other.

        The engine keeps count of tokens by the blocks of a KV cache, and OpenVINO makes its tables for those.

        Args:
            x: The hidden states.
            tokens: The ids of all tokens.
        """
        if self._pairs:
            return x
        rows = ops.broadcast(ops.constant(np.float32(0)), ops.concat([ops.shape_of(tokens), np.array([IDLE])], 0))
        found = self.attend(Projected([rows] * 3, [1] * 3, [IDLE] * 3, np.float32(1), 0))
        return ops.add(x, ops.reduce_sum(found, np.array([0, 1]), False))


def read(path: Path, *, adapted: bool = False, exact: bool = False, images: bool = False) -> Any:
    """Builds the network of a GGUF file.

    Args:
        path: The path of the file.
        adapted: Whether adapters will be added, for which each layer computes all tokens.
        exact: Whether weights must keep their values, instead of being requantized where that is faster.
        images: Whether the network gets inputs for images.

    Raises:
        StartError: The file cannot be served.
        RuntimeError: OpenVINO cannot make the network.
    """
    header, rows = header_of(path), None
    if header.architecture not in ARCHITECTURES:
        raise StartError(f"{path} is an encoder, which does not generate text; serve it with --task embeddings")
    shapes = [-1], [3, -1] if images and header.sections else [-1], [-1]
    tokens, positions, wanted = (network_input(*each, np.int64) for each in zip(TOKENS, shapes, strict=True))
    if images:
        from .image_inputs import ImageInputs  # late, because text networks do not need it

        rows = ImageInputs(header, tokens)
    marks = rows.marks() if rows is not None and header.sees_whole_images else None
    state = _State(marks, in_windows=ARCHITECTURES[header.architecture].whole_in_windows)
    with opened(path, header, exact=exact) as tensors:
        decoder = FileDecoder(tensors, adapted=adapted, images=rows)
        hidden = decoder.hidden(tokens, positions, state, None if adapted else wanted)
        hidden = state.with_attention(hidden, tokens)
        logits = decoder.logits(ops.gather(hidden, wanted, np.array([0])) if adapted else hidden)
    of_images = rows.inputs if rows is not None else []
    model = ov.Model([logits.output(0)], [tokens, positions, wanted, *of_images, *state.inputs], "gguf")
    _share_constants(model)
    return model


def _share_constants(model: Any) -> None:
    """Merges equal small constants, which removes a third of the nodes that OpenVINO's passes look at."""
    known: dict[Any, Any] = {}
    for node in model.get_ops():
        if node.get_type_name() == "Constant" and node.get_byte_size() <= SHARED_BYTES:
            key = node.get_element_type(), *node.get_output_shape(0), node.data.tobytes()
            first = known.setdefault(key, node).output(0)
            for reader in node.output(0).get_target_inputs() if first.get_node() is not node else ():
                reader.replace_source_output(first)
