"""Builds the network of an encoder in a GGUF file, such as BERT: bidirectional attention, and norms after the blocks,
or before them as in ModernBERT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from openvino import opset13 as ops

from ..architectures import ENCODERS
from . import layers
from .attention import Projected, Sequences, slopes_of
from .experts import chosen
from .file_layers import FileLayers, LinearLayer
from .positions import frequencies, unscaled
from .tensors import TensorRows, Tensors

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": lambda x: ops.gelu(x, "erf"),
    "gelu_pytorch_tanh": lambda x: ops.gelu(x, "tanh"),
    "silu": ops.swish,
}
"""The activation functions of feed-forward networks, by transformers' names."""
MEAN, FIRST = 1, 2
"""The numbers of the tokens that a classifier reads: the mean of all, or the first one."""


class FileEncoder:
    """Builds the network of an encoder from the tensors of a file."""

    def __init__(self, tensors: Tensors) -> None:
        """Reads the sizes of the network from the header.

        Args:
            tensors: The tensors of the file.
        """
        self._header = header = tensors.header
        self._tensors = tensors
        self._row = ENCODERS[header.architecture]
        epsilon = header.real("attention.layer_norm_rms_epsilon", 1e-12)  # its name in files of ModernBERT's own config
        self._layers = FileLayers(tensors, header.real("attention.layer_norm_epsilon", epsilon), adapted=False)
        self._heads = header.number("attention.head_count")
        self._size = header.number("embedding_length") // self._heads
        self._activation = str(header.metadata.get(f"{header.architecture}.hidden_activation", self._row.activation))
        if self._activation not in ACTIVATIONS:
            raise ValueError(f"its activation function is {self._activation}, and not {' or '.join(ACTIVATIONS)}")

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
        windows = [self._window(layer) for layer in range(self._header.number("block_count"))]
        kinds = {window > 0 for window in windows} if self._row.rotary else set[bool]()
        turned = {local: self._angles(positions, local) for local in kinds}
        for layer, window in enumerate(windows):
            name = f"blk.{layer}"
            before = self._normed(x, f"{name}.attn_norm")
            after = ops.add(x, self._attention(name, before, turned.get(window > 0), window, sequences))
            if self._row.early_norms:
                x = ops.add(after, self._forward(name, self._layers.layer_norm(after, f"{name}.ffn_norm")))
            else:
                after = self._layers.layer_norm(after, f"{name}.attn_output_norm")
                if self._layers.has(f"{name}.attn_norm_2"):
                    after = self._layers.layer_norm(ops.add(after, x), f"{name}.attn_norm_2")
                x = self._layers.layer_norm(ops.add(after, self._forward(name, after)), f"{name}.layer_output_norm")
        return self._layers.layer_norm(x, "output_norm") if self._row.early_norms else x

    def classes(self, hidden: Any, mask: Any) -> Any:
        """Returns the logits [texts, classes] of RoBERTa's or ModernBERT's classifier.

        Args:
            hidden: The hidden states [texts, tokens, width].
            mask: The mask of the tokens that are not padding [texts, tokens].
        """
        usual = MEAN if self._row.mean_classified else FIRST
        if (pooling := self._header.number("classifier.pooling_type") or usual) not in (MEAN, FIRST):
            raise ValueError(f"its classifier has the pooling type {pooling}, and not {MEAN} or {FIRST}")
        if pooling == MEAN:
            shown = ops.unsqueeze(ops.convert(mask, "f32"), np.int64(2))
            total = ops.reduce_sum(ops.multiply(hidden, shown), np.array([1]), True)
            read = ops.divide(total, ops.reduce_sum(shown, np.array([1]), True))
        else:
            read = ops.gather(hidden, np.array([0]), np.int64(1))
        found = self._layers.product(read, LinearLayer("cls", ""))
        if self._row.early_norms:
            found = self._layers.layer_norm(ACTIVATIONS["gelu"](found), "cls.norm")
        else:
            found = ops.tanh(found)
        return ops.squeeze(self._layers.product(found, LinearLayer("cls.output", "")), np.array([1]))

    def _window(self, layer: int) -> int:
        """Returns the number of tokens to which a token of a layer attends, or 0 for all."""
        key = f"{self._header.architecture}.attention.sliding_window_pattern"
        pattern = self._header.metadata.get(key, self._row.window_period)
        local = pattern[layer] if isinstance(pattern, list) else pattern > 0 and layer % pattern > 0
        return self._header.number("attention.sliding_window") if local else 0

    def _looked_up(self, name: str, ids: Any) -> Any:
        """Looks up the rows of a tensor by ids [tokens]."""
        matrix = self._tensors.matrix(TensorRows(f"{name}.weight"))
        return layers.looked_up(matrix, ops.convert(ops.unsqueeze(ids, np.int32(1)), "i32"))

    def _normed(self, x: Any, name: str) -> Any:
        """Applies the norm of this name, or returns x unchanged if the file has none."""
        return self._layers.layer_norm(x, name) if self._layers.has(name) else x

    def _attention(self, name: str, x: Any, turned: layers.Cosine | None, window: int, sequences: Sequences) -> Any:
        """Returns the projected result of a layer's attention.

        Args:
            name: The prefix of the names of the layer's tensors.
            x: The input of the layer.
            turned: The cosines and sines of RoPE; None if the network has no RoPE.
            window: The number of tokens to which a token attends; 0 for all.
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
        for place, letter in enumerate("qk"):
            values[place] = self._normed(values[place], f"{name}.attn_{letter}_norm")
            if turned is not None:
                heads = ops.reshape(values[place], np.array([0, self._heads, 1, self._size]), True)
                values[place] = layers.rotate(heads, turned, self._size, self._size)
        rows = [ops.reshape(value, np.array([-1, width]), False) for value in values]
        scale = np.float32(self._size**-0.5)
        slopes = slopes_of(self._heads) if self._row.sloped else ()
        found = sequences.attend(Projected(rows, [self._heads] * 3, [self._size] * 3, scale, window, slopes=slopes))
        found = ops.reshape(found, np.array([-1, 1, width]), False)
        return self._layers.product(found, LinearLayer(f"{name}.attn_output", ""))

    def _forward(self, name: str, x: Any) -> Any:
        """Returns the result of a layer's feed-forward network, or of its experts.

        Its gate is a tensor of its own, or the first half of the rows of `ffn_up` (the second half in Jina's model for
        code, which is known by the norm of its queries), or there is none.
        """
        if self._layers.has(f"{name}.ffn_gate_inp"):
            return self._experts(name, x)
        shown = ACTIVATIONS[self._activation]
        up = self._layers.product(x, LinearLayer(f"{name}.ffn_up", ""))
        if self._layers.has(f"{name}.ffn_gate"):
            up = ops.multiply(shown(self._layers.product(x, LinearLayer(f"{name}.ffn_gate", ""))), up)
        elif self._tensors.rows(f"{name}.ffn_up.weight") == 2 * self._tensors.shape(f"{name}.ffn_down.weight")[-1]:
            halves = ops.split(up, np.int64(2), 2).outputs()
            gate, up = halves[::-1] if self._layers.has(f"{name}.attn_q_norm") else halves
            up = ops.multiply(shown(gate), up)
        else:
            up = shown(up)
        return self._layers.product(up, LinearLayer(f"{name}.ffn_down", ""))

    def _experts(self, name: str, x: Any) -> Any:
        """Returns the weighted sum of the results of each token's experts, which have no gate.

        Each expert computes its own tokens, one expert after the other. A layer of nomic-embed-text-v2-moe takes 127 ms
        for 512 tokens, but 415 ms if all experts compute all tokens, and 708 ms with OpenVINO's GroupedMatMul; for 64
        tokens these are 29, 61 and 92 ms (CPU time in f32, November 2026).
        """
        tokens = ops.squeeze(x, np.array([1]))
        count, rows, _ = self._tensors.shape(f"{name}.ffn_up_exps.weight")
        width = self._tensors.shape(f"{name}.ffn_down_exps.weight")[1]
        used = self._header.number("expert_used_count")
        if not 0 < used <= count:
            raise ValueError(f"a token uses {used} of {count} experts")
        scores = self._layers.product(tokens, LinearLayer(f"{name}.ffn_gate_inp", ""))
        ids, weights = chosen(scores, used, sums_to_one=False)
        none = ops.multiply(scores, np.float32(0))
        shares = ops.split(ops.scatter_elements_update(none, ids, weights, np.int64(1)), np.int64(1), count).outputs()
        result = ops.multiply(tokens, np.float32(0))
        for expert, share in enumerate(shares):
            places = ops.non_zero(ops.squeeze(share, np.array([1])))
            own = ops.squeeze(places, np.array([0]))
            up, down = (
                LinearLayer(f"{name}.ffn_{part}_exps", "", slice(expert * size, (expert + 1) * size))
                for part, size in (("up", rows), ("down", width))
            )
            found = ACTIVATIONS[self._activation](self._layers.product(ops.gather(tokens, own, np.int64(0)), up))
            found = ops.multiply(self._layers.product(found, down), ops.gather(share, own, np.int64(0)))
            summed = ops.add(ops.gather(result, own, np.int64(0)), found)
            result = ops.scatter_nd_update(result, ops.transpose(places, np.array([1, 0])), summed)
        return ops.unsqueeze(result, np.array([1]))

    def _angles(self, positions: Any, local: bool) -> layers.Cosine:
        """Returns the cosines and sines of RoPE.

        Args:
            positions: The positions of the tokens.
            local: Whether they are those of layers with a window.
        """
        if local:
            base = self._header.real("rope.freq_base_swa", self._row.local_base)
            found, factor = unscaled(base, self._size), 1.0
        else:
            found, factor = frequencies(self._header, self._tensors, self._size, whole_ramp=True)
        return layers.angles(positions, found.astype(np.float32), factor)
