"""A LoRA adapter in a GGUF file, as convert_lora_to_gguf.py of llama.cpp writes it, read as one that peft has written.

Its tensors have the names of those that they change in the model's file. Here they get the names of transformers, by
which networks of all formats know their layers; joined matrices become several, and rows of queries and keys get the
order of transformers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...repository import model_config
from ...repository.safetensors import TensorInfo
from ...types import Json
from ...util.files import open_regular
from . import header
from .architectures import ARCHITECTURES, PARTS
from .cursor import Malformed

KINDS = {0: "F32", 1: "F16", 8: "Q8_0", 30: "BF16"}
"""The types of tensors by their numbers."""
SCALED = 34
"""The bytes of a block of Q8_0: a scale in 16 bits, and 32 numbers."""
PLACES = {
    **{f"attn_{letter}": f"self_attn.{letter}_proj" for letter in "qkv"},
    "attn_gate": "self_attn.gate_proj",
    "attn_output": "self_attn.o_proj",
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in PARTS},
    **{f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in PARTS},
}
"""The usual names of layers in transformers, by their names in files."""
ALPHA = "adapter.lora.alpha"
"""The key of the number that is divided by the rank of a layer for the factor of what the adapter adds to it."""
JOINED = "attn_qkv"
"""The name of a matrix with the rows of queries, keys and values."""
_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.weight\.lora_([ab])")


@dataclass(frozen=True, slots=True)
class _Rows:
    """A tensor for peft, as rows of one of the file."""

    tensor: str
    """The name in the file."""
    start: int
    """The first row."""
    count: int
    """The number of rows."""
    width: int
    """The number of elements of a row."""
    heads: int
    """The number of heads whose rows are in llama.cpp's order; 0 if rows are in that of transformers."""


class GgufAdapter:
    """The tensors of an adapter by peft's names. Its methods raise OSError and ValueError."""

    def __init__(self, path: Path, base: Json) -> None:
        """Keeps the path, and the members of the base model's config.json."""
        self.path = path
        self._base = base

    @cached_property
    def _header(self) -> header.Header:
        try:
            found = header.of_adapter(self.path)
        except (Malformed, header.Unsupported) as error:
            raise ValueError(str(error)) from None
        kind, method = (found.metadata.get(key) for key in ("general.type", "adapter.type"))
        if kind != "adapter" or method != "lora":
            raise ValueError(f"it is no LoRA adapter, since general.type is {kind} and adapter.type is {method}")
        if "adapter.alora.invocation_tokens" in found.metadata:
            raise ValueError("it is an activated LoRA (aLoRA), which is not supported")
        if found.architecture not in ARCHITECTURES:
            raise ValueError(f"adapters of the architecture {found.architecture or 'none'} are not supported")
        alpha = found.metadata.get(ALPHA, 0.0)
        if not isinstance(alpha, int | float) or not 0 <= alpha < math.inf:
            raise ValueError(f"its {ALPHA} is {alpha}")
        own = self._base.get("model_type")
        if own in ARCHITECTURES and own != found.architecture:
            raise ValueError(f"it is for models of the architecture {found.architecture}, and this one is {own}")
        return found

    def rows(self) -> dict[str, Any]:
        """Returns the types and shapes of the tensors by name."""
        names = self._tensors
        shapes = {name: [rows.count, rows.width] for name, rows in names.items()}
        return {name: {"dtype": self._kind(rows.tensor), "shape": shapes[name]} for name, rows in names.items()}

    def tensors(self, wanted: Callable[[str], object]) -> Iterator[tuple[str, TensorInfo]]:
        """Yields the tensors for whose names `wanted` is true."""
        with open_regular(self.path) as file:
            for name, rows in self._tensors.items():
                if wanted(name):
                    shape = rows.count, rows.width
                    yield name, TensorInfo(self._kind(rows.tensor), shape, self._data(file, rows))

    def parts(self, wanted: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
        """Yields the wanted tensors as numbers with the names of their types; of Q8_0 the scales."""
        for _, tensor in self.tensors(wanted):
            if tensor.kind != "Q8_0":
                yield tensor.kind, tensor.data
                continue
            scales = bytearray(2 * (len(tensor.data) // SCALED))
            scales[::2], scales[1::2] = tensor.data[::SCALED], tensor.data[1::SCALED]
            yield "F16", bytes(scales)

    def factor(self, rank: int) -> float:
        """Returns the factor of what the adapter adds to a layer in which it has this rank."""
        alpha: float = self._header.metadata.get(ALPHA, 0.0)
        return alpha / rank if alpha else 1.0

    @cached_property
    def _tensors(self) -> dict[str, _Rows]:
        """The tensors by peft's names."""
        found: dict[str, _Rows] = {}
        for name, shape in self._header.tensors.items():
            match = _NAME.fullmatch(name)
            if match is None or len(shape) != 2 or 0 in shape or self._header.kinds[name] not in KINDS:
                kinds = ", ".join(KINDS.values())
                raise ValueError(f"{name} is not lora_a or lora_b of a linear layer, as a matrix of {kinds}")
            layer, part, letter = int(match[1]), match[2], match[3].upper()
            for place, rows in self._places(name, part, letter):
                path = ARCHITECTURES[self._header.architecture].path(layer, place)
                if not path:
                    raise ValueError(f"{name} changes a layer that takes no adapters")
                peft = f"base_model.model.{path}.lora_{letter}.weight"
                if peft in found:
                    raise ValueError(f"{name} changes a layer that {found[peft].tensor} changes, too")
                found[peft] = rows
        return found

    def _places(self, name: str, part: str, letter: str) -> Iterator[tuple[str, _Rows]]:
        """Yields the layers that a tensor changes by their usual names, with the rows of it for each.

        Args:
            name: The name of the tensor.
            part: The name of the changed layer in the file.
            letter: A or B. The rows of A are the ranks, which all layers share.
        """
        width, count = self._header.tensors[name]
        if part == JOINED:
            size, heads, keys = self._heads
            if letter == "B" and count <= (heads + keys) * size:
                raise ValueError(f"{name} has {count} rows, and {heads} heads with {keys} for keys need more")
            names, ends = [f"attn_{each}" for each in "qkv"], [0, heads * size, (heads + keys) * size, count]
        elif part == "ffn_up" and self._has_gate(name):
            names, ends = ["ffn_gate", "ffn_up"], [0, count // 2, count]
        elif part in PLACES:
            names, ends = [part], [0, count]
        else:
            raise ValueError(f"{name} changes a layer that takes no adapters")
        rows = [(start, end - start) if letter == "B" else (0, count) for start, end in pairwise(ends)]
        for each, (start, number) in zip(names, rows, strict=True):
            yield PLACES[each], _Rows(name, start, number, width, self._permuted(name, each, letter, number))

    def _has_gate(self, name: str) -> bool:
        """Returns whether the matrix that a tensor for ffn_up changes begins with the rows of the gate, as in Phi-3."""
        shape, width = self._header.tensors.get(f"{name[:-1]}b", ()), self._count("intermediate_size")
        return width > 0 and len(shape) == 2 and shape[1] == 2 * width

    def _permuted(self, name: str, part: str, letter: str, count: int) -> int:
        """Returns the heads of which llama.cpp's converter has changed the order of rows; 0 for none.

        Args:
            name: The name of the tensor.
            part: The name of the layer in the file.
            letter: A or B.
            count: The number of rows for this layer.
        """
        if letter == "A" or part not in ("attn_q", "attn_k") or not ARCHITECTURES[self._header.architecture].permuted:
            return 0
        size, heads, keys = self._heads
        number = heads if part == "attn_q" else keys
        if count != number * size or size % 2:
            raise ValueError(f"{name} has {count} rows, and not {number} heads of {size}")
        return number

    @property
    def _heads(self) -> tuple[int, int, int]:
        """The size of a head of the base model, and its numbers of heads of queries and of keys."""
        heads = self._count("num_attention_heads")
        keys = self._count("num_key_value_heads") or heads
        size = self._count("head_dim") or self._count("hidden_size") // max(heads, 1)
        if not size:
            raise ValueError("its rows cannot be ordered, since the model does not state its heads")
        return size, heads, keys

    def _count(self, name: str) -> int:
        return model_config.count(self._base, name)

    def _kind(self, tensor: str) -> str:
        return KINDS[self._header.kinds[tensor]]

    def _data(self, file: Any, rows: _Rows) -> bytes:
        """Reads rows of a tensor, in the order of transformers."""
        size = self._header.size(rows.tensor) // self._header.tensors[rows.tensor][1]
        file.seek(self._header.places[rows.tensor][1] + rows.start * size)
        data: bytes = file.read(rows.count * size)
        if not rows.heads:
            return data
        half = rows.count // rows.heads // 2
        order = (
            2 * (head * half + pair) + side for head in range(rows.heads) for side in (0, 1) for pair in range(half)
        )
        return b"".join(data[row * size : (row + 1) * size] for row in order)
