"""Builds the network of an encoder in a GGUF file, such as BERT: bidirectional attention, and norms
after the blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import opset13 as ops

from ..architectures import ENCODERS
from ..header import Header
from . import layers
from .attention import Projected, Sequences
from .file_layers import FileLayers, LinearLayer
from .positions import frequencies
from .tensors import TensorRows, Tensors


class FileEncoder:
    """Builds the network of an encoder from the tensors of a file."""

    def __init__(self, header: Header, tensors: Tensors) -> None:
        """Reads the sizes of the network from the header.

        Args:
            header: The header of the file.
            tensors: The tensors of the file.
        """
        self._header = header
        self._tensors = tensors
        self._epsilon = header.real("attention.layer_norm_epsilon", 1e-12)
        self._layers = FileLayers(tensors, self._epsilon, adapted=False)
        self._heads = header.number("attention.head_count")
        self._size = header.number("embedding_length") // self._heads

    def hidden(self, tokens: Any, positions: Any, sequences: Sequences) -> Any:
        """Returns the hidden states [tokens, 1, width].

        Args:
            tokens: The ids of tokens [tokens].
            positions: The positions of the tokens in their texts [tokens].
            sequences: Builds the attention.
        """
        x = self._looked_up("token_embd", tokens)
        if "token_types.weight" in self._tensors:
            types = self._tensors.numbers("token_types.weight")  # in quantized files, a single type has one dimension
            x = ops.add(x, types.reshape(-1, types.shape[-1])[:1])
        if "position_embd.weight" in self._tensors:
            x = ops.add(x, self._looked_up("position_embd", positions))
        x = self._layers.layer_norm(x, "token_embd_norm")
        turned = self._angles(positions) if ENCODERS[self._header.architecture] else None
        for layer in range(self._header.number("block_count")):
            name = f"blk.{layer}"
            x = self._layers.layer_norm(
                ops.add(x, self._attention(name, x, turned, sequences)), f"{name}.attn_output_norm"
            )
            x = self._layers.layer_norm(ops.add(x, self._forward(name, x)), f"{name}.layer_output_norm")
        return x

    def classes(self, hidden: Any) -> Any:
        """Returns the logits [texts, classes] of RoBERTa's classifier.

        Args:
            hidden: The hidden states [texts, tokens, width].
        """
        first = ops.gather(hidden, np.array([0]), np.int64(1))
        found = ops.tanh(self._layers.product(first, LinearLayer("cls", "")))
        return ops.squeeze(self._layers.product(found, LinearLayer("cls.output", "")), np.array([1]))

    def _looked_up(self, name: str, ids: Any) -> Any:
        """Looks up the rows of a tensor by ids [tokens]."""
        matrix = self._tensors.matrix(TensorRows(f"{name}.weight"))
        return layers.looked_up(matrix, ops.convert(ops.unsqueeze(ids, np.int32(1)), "i32"))

    def _attention(self, name: str, x: Any, turned: layers.Cosine | None, sequences: Sequences) -> Any:
        """Returns the projected result of a layer's attention.

        Args:
            name: The prefix of the names of the layer's tensors.
            x: The input of the layer.
            turned: The cosines and sines of RoPE; None if the network has no RoPE.
            sequences: Builds the attention.
        """
        width, joined = self._heads * self._size, self._layers.has(f"{name}.attn_qkv")
        parts = [
            LinearLayer(f"{name}.attn_qkv", "", slice(place * width, (place + 1) * width))
            if joined
            else LinearLayer(f"{name}.attn_{letter}", "")
            for place, letter in enumerate("qkv")
        ]
        values = self._layers.products(x, parts)
        if turned is not None:
            for place in range(2):
                heads = ops.reshape(values[place], np.array([0, self._heads, 1, self._size]), True)
                values[place] = layers.rotate(heads, turned, self._size, self._size)
        rows = [ops.reshape(value, np.array([-1, width]), False) for value in values]
        scale = np.float32(self._size**-0.5)
        found = sequences.attend(Projected(rows, [self._heads] * 3, [self._size] * 3, scale, 0))
        found = ops.reshape(found, np.array([-1, 1, width]), False)
        return self._layers.product(found, LinearLayer(f"{name}.attn_output", ""))

    def _forward(self, name: str, x: Any) -> Any:
        """Returns the result of a layer's feed-forward network, which is gated if the file has a gate."""
        up = self._layers.product(x, LinearLayer(f"{name}.ffn_up", ""))
        if self._layers.has(f"{name}.ffn_gate"):
            gate = self._layers.product(x, LinearLayer(f"{name}.ffn_gate", ""))
            up = ops.multiply(ops.swish(gate), up)
        else:
            up = ops.gelu(up, "erf")
        return self._layers.product(up, LinearLayer(f"{name}.ffn_down", ""))

    def _angles(self, positions: Any) -> layers.Cosine:
        found, factor = frequencies(self._header, self._tensors, self._size, whole_ramp=True)
        return layers.angles(positions, found.astype(np.float32), factor)
