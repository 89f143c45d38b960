"""Builds the network of a decoder in a GGUF file, in the form of optimum-intel's exports."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from openvino import opset13 as ops

from ..architectures import ARCHITECTURES
from . import layers
from .altup import AltUp
from .attention import Sequences
from .file_attention import FileAttention, logits_cap
from .file_experts import FileExperts
from .file_layers import FileLayers, LinearLayer
from .state_mixers import StateMixers
from .tensors import Matrix, TensorRows, Tensors

if TYPE_CHECKING:
    from .image_inputs import ImageInputs

EMBEDDING_NORM = "token_embd_norm"
"""The name of the norm of the embeddings, if there is one."""
SUPPRESSED_TOKENS = "tokenizer.ggml.suppress_tokens"
"""The key of the tokens that the model must not generate, such as Gemma 4's tokens for images and audio."""
SUPPRESSED = -1e4
"""What is added to their logits: it makes their probability 0, and logits of bf16 and JSON can have it."""
PER_LAYER_WIDTH = "embedding_length_per_layer_input"
"""The key of the width of per-layer embeddings, which is missing if there are none."""


class FileDecoder:
    """Builds the network of a decoder from the tensors of a file."""

    def __init__(self, tensors: Tensors, *, adapted: bool = False, images: ImageInputs | None = None) -> None:
        """Reads the sizes of the network from the header, and its embeddings from the tensors.

        Args:
            tensors: The tensors of the file.
            adapted: Whether layers that could be joined to one matrix product stay apart, so that adapters can change
                each.
            images: The inputs of the network for images; None if it reads no images.
        """
        self._images = images
        self._header = header = tensors.header
        self._tensors = tensors
        self._row = ARCHITECTURES[header.architecture]
        stated = header.metadata.get(f"{header.architecture}.use_parallel_residual") is True
        if stated and not (self._row.parallel or self._row.states_parallel):
            raise ValueError("its feed-forward networks read what attention reads, which is not supported")
        self._parallel = self._row.parallel or stated
        centred, key = self._row.centred_norms, "attention.layer_norm_{}epsilon"
        epsilon = header.real(key.format("" if centred else "rms_"), header.real(key.format("rms_"), 1e-5))
        self._layers = FileLayers(tensors, epsilon, adapted=adapted, centred=centred, bare=self._row.bare_norms)
        self._attention = FileAttention(tensors, self._layers, self._row)
        self._states = StateMixers(tensors, self._layers)
        self._experts = FileExperts(tensors, self._layers, self._row)
        self._width = header.number("embedding_length")
        base, depth = self._row.base_width, self._row.depth_scale
        scale = header.real("logit_scale", self._width / base if base else 1.0)
        self._logits_scale = scale if self._row.multiplied_logits else 1 / scale
        self._logits_cap = logits_cap(header)
        self._residual_scale = header.real("residual_scale", depth / math.sqrt(header.layers) if depth else 1.0)
        self._embeddings = tensors.matrix(TensorRows("token_embd.weight"))
        self._altup = AltUp(tensors, self._layers, epsilon) if self._row.altup else None
        self._sparsity = header.reals("activation_sparsity_scale")
        """The limit of each layer's gates in standard deviations from their mean; -inf for layers without a limit."""
        if self._row.altup and len(self._sparsity) < header.layers:
            raise KeyError(f"{header.architecture}.activation_sparsity_scale")
        if self._row.altup and not header.number(PER_LAYER_WIDTH):
            raise KeyError(f"{header.architecture}.{PER_LAYER_WIDTH}")

    def hidden(self, tokens: Any, positions: Any, sequences: Sequences, wanted: Any = None) -> Any:
        """Returns the hidden states [tokens, 1, width] before the last projection.

        Args:
            tokens: The ids of tokens [tokens].
            positions: The positions of the tokens in their sequences [tokens].
            sequences: Builds the operations in which tokens depend on those before them.
            wanted: The indices of the tokens whose states are returned; everything after the last attention is computed
                for these only. None for all tokens.
        """
        ids = ops.convert(ops.unsqueeze(tokens, np.int32(1)), "i32")
        x = self._embedded(ids, positions)
        each_layer = self._for_layers(ids if self._images is None else self._images.padded(ids), x)
        if self._altup is not None:
            self._altup.begin(x)
        mixing = [layer for layer in range(self._header.layers) if self._mixes(layer)]
        for layer in range(self._header.layers):
            x = x if self._altup is None else self._altup.predict(layer)
            before = x
            if layer in mixing:
                kept = wanted if layer == mixing[-1] else None
                x = self._after_mixer(layer, x, positions, sequences, kept)
                each_layer = [_kept(each, kept) for each in each_layer]
                before = _kept(before, kept)
            if self._row.alternating and not self._feeds(layer):
                continue
            result = self._forward(layer, before if self._parallel else x, before)
            x = ops.add(x, layers.times(self._layers.norm(result, f"blk.{layer}.post_ffw_norm"), self._residual_scale))
            x = self._with_embeddings(layer, x, each_layer[layer] if each_layer else None)
            if self._layers.has(f"blk.{layer}.layer_output_scale"):
                x = ops.multiply(x, self._tensors.numbers(f"blk.{layer}.layer_output_scale.weight").reshape(1, 1, 1))
        return self._layers.norm(x if self._altup is None else self._altup.end(), self._row.last_norm)

    def _embedded(self, ids: Any, positions: Any) -> Any:
        """Returns the input of the first layer [tokens, 1, width]: the embeddings of tokens, positions and images.

        Args:
            ids: The ids of the tokens [tokens, 1].
            positions: The positions of the tokens in their sequences [tokens].
        """
        x = layers.looked_up(self._embeddings, ids)
        scale = math.sqrt(self._width) if self._row.scaled_embeddings else self._row.embedding_scale
        x = layers.times(x, self._header.real("embedding_scale", scale))
        if "position_embd.weight" in self._tensors:
            places = ops.convert(ops.unsqueeze(positions, np.int32(1)), "i32")
            x = ops.add(x, layers.looked_up(self._tensors.matrix(TensorRows("position_embd.weight")), places))
        if self._row.last_norm != EMBEDDING_NORM:
            x = self._layers.norm(x, EMBEDDING_NORM)
        return x if self._images is None else self._images.embedded(x)

    def _after_mixer(self, layer: int, x: Any, positions: Any, sequences: Sequences, kept: Any) -> Any:
        """Returns the input of a layer with the result of its token mixer added [tokens, 1, width].

        Args:
            layer: The number of the layer.
            x: The input of the layer.
            positions: The positions of the tokens.
            sequences: Builds the operations in which tokens depend on those before them.
            kept: The indices of the tokens that are needed from then on; None for all tokens.
        """
        own = f"blk.{layer}.attn_norm_2"
        normed = self._layers.norm(x, own if self._layers.has(own) else f"blk.{layer}.attn_norm")
        result, last = self._mixed(layer, normed, positions, sequences)
        if self._altup is not None:
            x = self._with_laurel(layer, x, normed)
            self._altup.keep(kept)
        x, result = (_kept(each, kept) for each in (x, result))
        result = self._layers.product(result, last)
        if self._row.beside:
            attended = _kept(self._attention.attended(layer, normed, positions, sequences), kept)
            result = ops.add(result, self._layers.product(attended, self._output(layer)))
        if self._row.forward_norm != "post_attention_norm":
            result = self._layers.norm(result, f"blk.{layer}.post_attention_norm")
        x = ops.add(x, layers.times(result, self._residual_scale))
        return x if self._altup is None else layers.times(x, 2**-0.5)

    def _with_laurel(self, layer: int, x: Any, normed: Any) -> Any:
        """Adds a learned augmented residual layer (LAuReL) to the input of a layer [tokens, 1, width].

        Args:
            layer: The number of the layer.
            x: The input of the layer.
            normed: The normalized input, which goes through two small matrices.
        """
        name = f"blk.{layer}.laurel"
        found = self._layers.product(normed, LinearLayer(f"{name}_l", ""))
        found = self._layers.norm(self._layers.product(found, LinearLayer(f"{name}_r", "")), f"{name}_post_norm")
        return ops.add(x, ops.add(normed, found))

    def _feeds(self, layer: int) -> bool:
        """Returns whether a layer has a feed-forward network."""
        return any(self._layers.has(f"blk.{layer}.ffn_down{end}") for end in ("", "_exps"))

    def _mixes(self, layer: int) -> bool:
        """Returns whether a layer has a token mixer."""
        known = any(self._layers.has(f"blk.{layer}.{name}") for name in ("attn_output", "ssm_out"))
        return known or not self._row.alternating

    def _for_layers(self, ids: Any, x: Any) -> list[Any]:
        """Returns the per-layer embeddings of the tokens, one [tokens, 1, width] for each layer; [] if there are none.

        Args:
            ids: The ids of the tokens [tokens, 1].
            x: The embeddings of the tokens.
        """
        width = self._header.number(PER_LAYER_WIDTH)
        if not width:
            return []
        shape = np.array([0, self._header.layers, width])
        own = layers.looked_up(self._tensors.matrix(TensorRows("per_layer_token_embd.weight")), ids)
        own = layers.times(ops.reshape(own, shape, True), math.sqrt(width))
        shown = layers.times(self._layers.product(x, LinearLayer("per_layer_model_proj", "")), self._width**-0.5)
        shown = self._layers.norm(ops.reshape(shown, shape, True), "per_layer_proj_norm")
        both = layers.times(ops.add(shown, own), 2**-0.5)
        return ops.split(both, np.int64(1), self._header.layers).outputs()  # type: ignore[no-any-return]

    def _with_embeddings(self, layer: int, x: Any, own: Any) -> Any:
        """Adds the per-layer embeddings of tokens, and those of images, to the result of a layer [tokens, 1, width].

        Args:
            layer: The number of the layer.
            x: The result of attention and feed-forward network.
            own: The embeddings of the tokens for this layer; None if there are none.
        """
        if own is not None:
            name, shown = f"blk.{layer}", x if self._altup is None else self._altup.correct(layer, x)
            gate = self._layers.product(shown, LinearLayer(f"{name}.inp_gate", ""))
            gated = ops.multiply(layers.ACTIVATIONS[self._row.activation](gate), own)
            found = self._layers.norm(self._layers.product(gated, LinearLayer(f"{name}.proj", "")), f"{name}.post_norm")
            if self._altup is not None:
                self._altup.add(found)
            else:
                x = ops.add(x, found)
        return x if self._images is None else self._images.deepened(layer, x)

    def logits(self, hidden: Any) -> Any:
        """Projects hidden states to logits, scaled and capped as the file says, without its suppressed tokens."""
        bias = self._tensors.numbers("output.bias") if "output.bias" in self._tensors else None
        found = layers.product(hidden, self.head(), self._layers.sums, bias, "lm_head")
        found = layers.times(found, self._logits_scale)
        cap = self._logits_cap
        found = layers.times(ops.tanh(layers.times(found, 1 / cap)), cap) if cap else found
        width = layers.partial_shape(found)[-1].get_length()
        stated = self._header.metadata.get(SUPPRESSED_TOKENS)
        ids = [token for token in stated if 0 <= token < width] if isinstance(stated, list) else []
        if not ids:
            return found
        added = np.zeros((1, 1, width), np.float32)
        added[..., ids] = SUPPRESSED
        return ops.add(found, added)

    def vectors(self, hidden: Any) -> Any:
        """Applies the final projections of embedding models, if there are any, to hidden states.

        In the original model they come after the pooling. The result is the same, as both mean pooling and the
        projections are linear.
        """
        for name in ("dense_2", "dense_3"):
            if self._layers.has(name):
                hidden = self._layers.product(hidden, LinearLayer(name, ""))
        return hidden

    def head(self, name: str = "output") -> Matrix:
        """Returns the matrix of the output layer with this name, or the token embeddings if the file has none."""
        return self._tensors.matrix(TensorRows(f"{name}.weight")) if self._layers.has(name) else self._embeddings

    def _mixed(self, layer: int, x: Any, positions: Any, sequences: Sequences) -> tuple[Any, LinearLayer]:
        """Returns the result of a layer's token mixer, such as attention, and the linear layer that projects it.

        Args:
            layer: The number of the layer.
            x: The normalized input of the layer.
            positions: The positions of the tokens.
            sequences: Builds the operations in which tokens depend on those before them.
        """
        if (found := self._states.mixed(layer, x, sequences)) is not None:
            return found
        if self._row.alternating and not any(self._layers.has(f"blk.{layer}.attn_{name}") for name in ("q", "qkv")):
            return x, self._output(layer)  # a linear layer in place of attention
        return self._attention.attended(layer, x, positions, sequences), self._output(layer)

    def _output(self, layer: int) -> LinearLayer:
        """Returns the linear layer that projects the result of attention."""
        return LinearLayer(f"blk.{layer}.attn_output", self._row.path(layer, "self_attn.o_proj"))

    def _forward(self, layer: int, x: Any, first: Any) -> Any:
        """Returns the result of a layer's feed-forward network, or of its experts, the shared expert included.

        Args:
            layer: The number of the layer.
            x: The input of the network, not normalized.
            first: The input of the layer.
        """
        name, before = f"blk.{layer}.ffn", x
        x = self._layers.norm(before, f"blk.{layer}.{self._row.forward_norm}")
        if not self._layers.has(f"{name}_gate_inp"):
            return self._dense(layer, x, "", "mlp")
        if self._layers.has(f"blk.{layer}.pre_ffw_norm_2"):
            shared = self._layers.norm(self._dense(layer, x, "", "mlp"), f"blk.{layer}.post_ffw_norm_1")
            return ops.add(shared, self._experts_apart(layer, before))
        latent = self._layers.has(f"{name}_latent_down")
        inner = self._layers.product(x, LinearLayer(f"{name}_latent_down", "")) if latent else x
        found = self._experts.mixed(layer, inner, first if self._row.routed_early else x)
        found = self._layers.product(found, LinearLayer(f"{name}_latent_up", "")) if latent else found
        if self._layers.has(f"{name}_up_shexp"):
            shared = self._dense(layer, x, "_shexp", "mlp.shared_expert")
            if self._layers.has(f"{name}_gate_inp_shexp"):
                weights = self._tensors.numbers(f"{name}_gate_inp_shexp.weight").reshape(1, -1)
                shared = ops.multiply(shared, ops.sigmoid(ops.matmul(x, weights, False, True)))
            found = layers.times(ops.add(found, shared), 0.5 if self._row.averaged else 1.0)
        return found

    def _experts_apart(self, layer: int, x: Any) -> Any:
        """Returns the result of Gemma 4's experts, which have norms of their own before and after them.

        Args:
            layer: The number of the layer.
            x: The input, not normalized.
        """
        factors = self._tensors.numbers(f"blk.{layer}.ffn_gate_inp.scale") * self._width**-0.5
        scored = ops.multiply(self._layers.unit_norm(x), factors)
        found = self._experts.mixed(layer, self._layers.norm(x, f"blk.{layer}.pre_ffw_norm_2"), scored)
        return self._layers.norm(found, f"blk.{layer}.post_ffw_norm_2")

    def _dense(self, layer: int, x: Any, end: str, place: str) -> Any:
        """Returns the result of a dense feed-forward network.

        Args:
            layer: The number of the layer.
            x: The input of the network.
            end: The suffix of the names of its tensors.
            place: The name of the network in the layer in transformers.
        """
        gate, up, down = (f"blk.{layer}.ffn_{name}{end}" for name in ("gate", "up", "down"))
        activate, last = self._activation(layer), self._row.path(layer, f"{place}.down_proj")
        if not self._row.gated:
            x = activate(self._layers.product(x, LinearLayer(up, self._row.path(layer, f"{place}.up_proj"))))
            return self._layers.product(x, LinearLayer(down, last))
        rows, more = slice(None), slice(None)
        if not self._layers.has(gate):
            half = self._tensors.shape(f"{up}.weight")[0] // 2
            gate, rows, more = up, slice(half), slice(half, None)
        # Not as one product: OpenVINO applies the gate's activation before it rounds to bf16.
        gated = self._layers.product(x, LinearLayer(gate, self._row.path(layer, f"{place}.gate_proj"), rows))
        if self._sparsity and math.isfinite(self._sparsity[layer]):
            gated = layers.sparse(gated, self._sparsity[layer])
        shown = self._layers.product(x, LinearLayer(up, self._row.path(layer, f"{place}.up_proj"), more))
        both = layers.limited(activate(gated), shown, self._header.real_of("swiglu_clamp_shexp", layer))
        return self._layers.product(ops.multiply(*both), LinearLayer(down, last))

    def _activation(self, layer: int) -> Callable[[Any], Any]:
        """Returns the activation function of a layer's feed-forward network."""
        if self._row.activation != "xielu":
            return layers.ACTIVATIONS[self._row.activation]
        numbers = [self._header.metadata[f"xielu.{name}"][layer] for name in ("alpha_p", "alpha_n", "beta", "eps")]
        return lambda x: layers.xielu(x, *numbers)


def _kept(x: Any, wanted: Any) -> Any:
    """Returns the tokens of x with these indices, or all if there are no indices."""
    return x if wanted is None else ops.gather(x, wanted, np.array([0]))
