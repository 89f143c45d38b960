"""Builds the network of a decoder in a GGUF file, in the form of optimum-intel's exports."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from openvino import opset13 as ops

from ..architectures import ARCHITECTURES, MANY
from ..header import Header
from . import layers
from .altup import AltUp
from .attention import Projected, Sequences
from .file_experts import FileExperts
from .file_layers import FileLayers, LinearLayer, halves
from .positions import frequencies
from .state_mixers import StateMixers
from .tensors import Matrix, TensorRows, Tensors

if TYPE_CHECKING:
    from .image_inputs import ImageInputs

SECTIONS = "rope.dimension_sections"
"""The key of the numbers of pairs that the time, the row and the column of a token turn, where images have these."""
PER_LAYER_WIDTH = "embedding_length_per_layer_input"
"""The key of the width of per-layer embeddings, which is missing if there are none."""
VALUES = 2
"""The index of the values, after queries and keys."""


class Heads(NamedTuple):
    """The attention heads of a layer."""

    counts: list[int]
    """The number of heads of queries, keys and values."""
    sizes: list[int]
    """The size of a head of queries, keys and values."""
    rotated: int
    """The number of a head's elements that RoPE rotates."""


def attention_cap(header: Header) -> float:
    """Returns the soft cap of the attention logits of a file's network; 0 if there is none."""
    return header.real("attn_logit_softcapping", ARCHITECTURES[header.architecture].attention_cap)


class FileDecoder:
    """Builds the network of a decoder from the tensors of a file."""

    def __init__(
        self, header: Header, tensors: Tensors, *, adapted: bool = False, images: ImageInputs | None = None
    ) -> None:
        """Reads the sizes of the network from the header, and its embeddings from the tensors.

        Args:
            header: The header of the file.
            tensors: The tensors of the file.
            adapted: Whether layers that could be joined to one matrix product stay apart, so that adapters can change
                each.
            images: The inputs of the network for images; None if it reads no images.
        """
        self._images = images
        self._header = header
        self._tensors = tensors
        self._row = ARCHITECTURES[header.architecture]
        stated = header.metadata.get(f"{header.architecture}.use_parallel_residual") is True
        if stated and not (self._row.parallel or self._row.states_parallel):
            raise ValueError("its feed-forward networks read what attention reads, which is not supported")
        self._parallel = self._row.parallel or stated
        centred, key = self._row.centred_norms, "attention.layer_norm_{}epsilon"
        epsilon = header.real(key.format("" if centred else "rms_"), header.real(key.format("rms_"), 1e-5))
        self._layers = FileLayers(tensors, epsilon, adapted=adapted, centred=centred)
        self._states = StateMixers(header, tensors, self._layers)
        self._experts = FileExperts(header, tensors, self._layers, self._row)
        self._width = header.number("embedding_length")
        base, depth = self._row.base_width, self._row.depth_scale
        scale = header.real("logit_scale", self._width / base if base else 1.0)
        self._logits_scale = scale if self._row.multiplied_logits else 1 / scale
        self._logits_cap = header.real("final_logit_softcapping", self._row.logits_cap)
        self._residual_scale = header.real("residual_scale", depth / math.sqrt(header.layers) if depth else 1.0)
        self._sharing = header.layers - header.number("attention.shared_kv_layers")
        self._shared: dict[bool, list[Any]] = {}
        """The keys and values of the last layer with a sliding window, and of the last one without."""
        self._embeddings = tensors.matrix(TensorRows("token_embd.weight"))
        self._turned: dict[bool, layers.Cosine] = {}
        self._temperature: Any = None
        self._altup = AltUp(header, tensors, self._layers, epsilon) if self._row.altup else None
        self._sparsity = header.reals("activation_sparsity_scale")
        """The limit of each layer's gates in standard deviations from their mean; -inf for layers without a limit."""
        if self._row.altup and len(self._sparsity) < header.layers:
            raise KeyError(f"{header.architecture}.activation_sparsity_scale")
        if self._row.altup and not header.number(PER_LAYER_WIDTH):
            raise KeyError(f"{header.architecture}.{PER_LAYER_WIDTH}")
        self._trained = f"{header.architecture}.rope.scaling.finetuned"

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
        x = layers.looked_up(self._embeddings, ids)
        scale = math.sqrt(self._width) if self._row.scaled_embeddings else self._row.embedding_scale
        x = layers.times(x, self._header.real("embedding_scale", scale))
        if "position_embd.weight" in self._tensors:
            places = ops.convert(ops.unsqueeze(positions, np.int32(1)), "i32")
            x = ops.add(x, layers.looked_up(self._tensors.matrix(TensorRows("position_embd.weight")), places))
        x = x if self._images is None else self._images.embedded(x)
        each_layer = self._for_layers(ids if self._images is None else self._images.padded(ids), x)
        if self._altup is not None:
            self._altup.begin(x)
        mixing = [layer for layer in range(self._header.layers) if not self._only_feeds(layer)]
        for layer in range(self._header.layers):
            x = x if self._altup is None else self._altup.predict(layer)
            before = x
            if layer in mixing:
                kept = wanted if layer == mixing[-1] else None
                x = self._after_mixer(layer, x, positions, sequences, kept)
                each_layer = [_kept(each, kept) for each in each_layer]
                before = _kept(before, kept)
                if self._row.alternating:
                    continue
            result = self._forward(layer, before if self._parallel else x, before)
            x = ops.add(x, layers.times(self._layers.norm(result, f"blk.{layer}.post_ffw_norm"), self._residual_scale))
            x = self._with_embeddings(layer, x, each_layer[layer] if each_layer else None)
            if self._layers.has(f"blk.{layer}.layer_output_scale"):
                x = ops.multiply(x, self._tensors.numbers(f"blk.{layer}.layer_output_scale.weight").reshape(1, 1, 1))
        return self._layers.norm(x if self._altup is None else self._altup.end(), self._row.last_norm)

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
            attended = _kept(self._attention(layer, normed, positions, sequences), kept)
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

    def _only_feeds(self, layer: int) -> bool:
        """Returns whether a layer has only a feed-forward network, and no token mixer."""
        has = self._layers.has
        return self._row.alternating and (has(f"blk.{layer}.ffn_down") or has(f"blk.{layer}.ffn_down_exps"))

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
        """Projects hidden states to logits, scaled and capped as the file says."""
        bias = self._tensors.numbers("output.bias") if "output.bias" in self._tensors else None
        found = layers.product(hidden, self.head(), self._layers.sums, bias, "lm_head")
        found = layers.times(found, self._logits_scale)
        cap = self._logits_cap
        return layers.times(ops.tanh(layers.times(found, 1 / cap)), cap) if cap else found

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
        attention = self._latent if self._layers.has(f"blk.{layer}.attn_kv_a_mqa") else self._attention
        return attention(layer, x, positions, sequences), self._output(layer)

    def _output(self, layer: int) -> LinearLayer:
        """Returns the linear layer that projects the result of attention."""
        return LinearLayer(f"blk.{layer}.attn_output", self._name(layer, "self_attn.o_proj"))

    def _name(self, layer: int, place: str) -> str:
        """Returns the name in transformers of a part of a layer, or "" if it has none there."""
        name = self._row.renamed.get(place, place)
        return name and f"model.layers.{layer}.{name}"

    def _heads(self, layer: int) -> Heads:
        header, local = self._header, "_swa" if self._window(layer) else ""
        heads, groups = header.number("attention.head_count"), header.numbers("attention.head_count_kv")
        keys = (groups[layer] if layer < len(groups) > 1 else max(groups, default=0)) or heads

        def number(name: str) -> int:
            return header.number(f"{name}{local}") or header.number(name)

        size = number("attention.key_length") or self._width // heads
        sizes = [size, size, number("attention.value_length") or size]
        return Heads([heads, keys, keys], sizes, min(size, number("rope.dimension_count") or size))

    def _attention(self, layer: int, x: Any, positions: Any, sequences: Sequences) -> Any:
        """Returns the result of a layer's attention [tokens, 1, heads * size], before it is projected."""
        window, heads = self._window(layer), self._heads(layer)
        projected, gate = self._projections(layer, x, heads), None
        width = heads.counts[0] * heads.sizes[2]
        if self._is_gated(layer, heads):
            both = ops.reshape(projected[0], np.array([0, heads.counts[0], 2, heads.sizes[0]]), True)
            projected[0], gate = (
                ops.reshape(part, np.array([0, 1, width]), True) for part in ops.split(both, np.int64(2), 2).outputs()
            )
        elif self._layers.has(f"blk.{layer}.attn_gate"):
            gate = LinearLayer(f"blk.{layer}.attn_gate", self._name(layer, "self_attn.gate_proj"))
            gate = self._layers.product(x, gate)
        values = [
            ops.reshape(self._placed(value, layer, place, positions, heads), np.array([0, -1]), True)
            for place, value in enumerate(projected)
        ]
        if layer < self._sharing:
            self._shared[bool(window)] = values[1:]
        elif (shared := self._shared.get(bool(window))) is None:
            raise ValueError(f"layer {layer} shares keys and values with a layer that does not exist")
        else:
            values += shared
        by = self._header.number("block_count") == self._row.scales_by_width
        size = self._width / heads.counts[0] if by else heads.sizes[0]
        scale = self._header.real("attention.scale", self._row.attention_scale or size**-0.5)
        sinks = None
        if (name := f"blk.{layer}.attn_sinks.weight") in self._tensors:
            sinks = ops.constant(self._tensors.numbers(name).reshape(1, -1, 1, 1))
        attention = Projected(
            values, heads.counts, heads.sizes, np.float32(scale), window, sinks, attention_cap(self._header)
        )
        found = sequences.attend(attention)
        found = ops.reshape(found, np.array([0, 1, width]), True)
        return found if gate is None else ops.multiply(found, ops.sigmoid(gate))

    def _latent(self, layer: int, x: Any, positions: Any, sequences: Sequences) -> Any:
        """Returns the result of DeepSeek's multi-head latent attention [tokens, 1, heads * size of a value].

        All heads share one key, which is a latent vector and a part with RoPE, and the latent vector as their value.
        Only these are in the KV cache. Queries are projected to the latent space, and results are projected back.
        """
        name, number = f"blk.{layer}", self._header.number
        heads, rank = number("attention.head_count"), number("attention.kv_lora_rank")
        turned = number("rope.dimension_count")
        plain = (number("attention.key_length_mla") or number("attention.key_length")) - turned
        if self._layers.has(f"{name}.attn_q_a"):
            queries = self._layers.product(x, LinearLayer(f"{name}.attn_q_a", ""))
            queries, last = self._layers.norm(queries, f"{name}.attn_q_a_norm"), "attn_q_b"
        else:
            queries, last = x, "attn_q"
        if plain <= 0 or self._tensors.rows(f"{name}.{last}.weight") != heads * (plain + turned):
            raise ValueError(f"the rows of {name}.{last}.weight are not {heads} heads of {plain + turned} elements")
        if self._tensors.rows(f"{name}.attn_kv_a_mqa.weight") != rank + turned:
            raise ValueError(f"the rows of {name}.attn_kv_a_mqa.weight are not {rank} and {turned}")
        order = halves(heads, plain + turned, turned, plain) if self._row.pairs else None
        queries = self._layers.product(queries, LinearLayer(f"{name}.{last}", "", order=order))
        rest, query = _split(ops.reshape(queries, np.array([0, heads, 1, plain + turned]), True), plain, turned)
        order = halves(1, rank + turned, turned, rank) if self._row.pairs else None
        both = LinearLayer(f"{name}.attn_kv_a_mqa", "", order=order)
        latent, key = _split(ops.unsqueeze(self._layers.product(x, both), np.array([2])), rank, turned)
        latent = self._layers.norm(latent, f"{name}.attn_kv_a_norm")
        angles = self._angles(positions, turned, False)
        query, key = (layers.rotate(each, angles, turned, turned) for each in (query, key))
        if self._layers.has(f"{name}.attn_kv_b"):  # in files of older converters
            joined = self._tensors.numbers(f"{name}.attn_kv_b.weight").reshape(heads, -1, rank)
            keys, results = joined[:, :plain].swapaxes(1, 2), joined[:, plain:]
        else:
            keys, results = (self._tensors.numbers(f"{name}.attn_{letter}_b.weight") for letter in "kv")
        rest = _by_heads(rest, keys)
        values = [self._heated(ops.concat([rest, query], -1), positions), ops.concat([latent, key], -1), latent]
        rows = [ops.reshape(value, np.array([0, -1]), True) for value in values]
        sizes = [rank + turned, rank + turned, rank]
        scale = np.float32(self._latent_scale(plain + turned))
        found = sequences.attend(Projected(rows, [heads, 1, 1], sizes, scale, 0))
        found = _by_heads(ops.reshape(found, np.array([0, heads, 1, rank]), True), results)
        return ops.reshape(found, np.array([0, 1, -1]), True)

    def _latent_scale(self, size: int) -> float:
        """Returns the attention scale of latent attention, which YaRN increases.

        Args:
            size: The number of elements of a head's query.
        """
        more = self._header.real("rope.scaling.yarn_log_multiplier", 0.0)
        factor = self._header.real("rope.scaling.factor", 1.0) if self._header.scaling == "yarn" else 1.0
        growth = 1 + more * math.log(factor)
        return growth * growth / math.sqrt(size)

    def _is_gated(self, layer: int, heads: Heads) -> bool:
        """Returns whether the query projection also has the gates of the attention's results, head by head."""
        name = f"blk.{layer}.attn_q"
        rows = heads.counts[0] * heads.sizes[0]
        return self._layers.has(name) and self._tensors.rows(f"{name}.weight") == 2 * rows

    def _placed(self, value: Any, layer: int, place: int, positions: Any, heads: Heads) -> Any:
        """Applies norm and RoPE to queries or keys, and the norm to values.

        Args:
            value: The queries, keys or values [tokens, 1, heads * size].
            layer: The number of the layer.
            place: 0 for queries, 1 for keys, 2 for values.
            positions: The positions of the tokens.
            heads: The heads of the layer.
        """
        count, size, name = heads.counts[place], heads.sizes[place], f"blk.{layer}.attn_{'qkv'[place]}_norm"
        if place == VALUES:
            apart = np.array([0, count, 1, size])
            return self._layers.unit_norm(ops.reshape(value, apart, True)) if self._row.unit_values else value
        shape = self._tensors.shape(f"{name}.weight") if self._layers.has(name) else [size]
        if len(shape) > 1:
            raise ValueError(f"{name} has other weights for each head, which is not supported")
        for_each = shape[-1] == size
        value = value if for_each else self._layers.norm(value, name)
        value = ops.reshape(value, np.array([0, count, 1, size]), True)
        value = self._layers.norm(value, name) if for_each and not self._row.late_norms else value
        if not self._is_rotated(layer):
            return value
        angles = self._angles(positions, heads.rotated, bool(self._window(layer)))
        found = layers.rotate(value, angles, size, heads.rotated)
        found = self._layers.norm(found, name) if self._row.late_norms else found
        if self._row.unit_keys and self._header.number("expert_count") < MANY:
            found = self._layers.unit_norm(found)
        return found if place else self._heated(found, positions)

    def _is_rotated(self, layer: int) -> bool:
        """Returns whether queries and keys of a layer are rotated by RoPE."""
        row, get = self._row, self._header.metadata.get
        listed = get(f"{self._header.architecture}.attention.rope_pattern")
        if isinstance(listed, list) and layer < len(listed):
            return bool(listed[layer])
        if row.unrotated and (not row.windowed or self._header.number("attention.sliding_window")):
            return self._in_period(layer, row.unrotated) > 0
        return not row.switched or get(self._trained) is not False

    def _in_period(self, layer: int, period: int) -> int:
        """Returns the place of a layer in its period; 0 for the one that differs from the others."""
        return (layer + (not self._row.first)) % period

    def _heated(self, queries: Any, positions: Any) -> Any:
        """Multiplies queries by a factor that grows with their positions, if the file has its temperature scale."""
        growth, period = self._header.real("attention.temperature_scale", 0.0), 0
        if not growth:
            return queries
        for key in ("attention.temperature_length", "rope.scaling.original_context_length"):
            period = period or self._header.number(key)
        if not period:
            raise KeyError(f"{self._header.architecture}.rope.scaling.original_context_length")
        if self._temperature is None:
            self._temperature = layers.temperature(positions, growth, period)
        return ops.multiply(queries, self._temperature)

    def _projections(self, layer: int, x: Any, heads: Heads) -> list[Any]:
        """Returns queries, keys and values [tokens, 1, heads * size]; only queries if the layer shares keys and values.

        Args:
            layer: The number of the layer.
            x: The normalized input of the layer.
            heads: The heads of the layer.
        """
        joined, start, parts = f"blk.{layer}.attn_qkv", 0, list[LinearLayer]()
        # Where images have positions by axes, llama.cpp's converter has put the pairs apart already.
        pairs = self._row.pairs and not self._header.numbers(SECTIONS)
        for letter, count, size in zip("qkv", heads.counts, heads.sizes, strict=True):
            if letter != "q" and layer >= self._sharing:
                break
            turned = size if self._row.permuted else heads.rotated  # the converter permutes all rows of a head
            order = halves(count, size, turned) if pairs and letter != "v" else None
            rows = slice(start, start := start + count * size)
            name = f"blk.{layer}.attn_{letter}"
            name, rows = (joined, rows) if self._layers.has(joined) else (name, slice(None))
            # If rows are reordered, an adapter's rows would not match.
            moved = order is not None and not self._row.permuted
            place = "" if moved else self._name(layer, f"self_attn.{letter}_proj")
            if letter != "v" or not self._row.unit_values or self._layers.has(name):
                parts.append(LinearLayer(name, place, rows, order))
        found = self._layers.products(x, parts)
        return found if layer >= self._sharing or len(found) > VALUES else [*found, found[-1]]

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
            found = ops.add(found, shared)
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
        activate, last = self._activation(layer), self._name(layer, f"{place}.down_proj")
        if not self._row.gated:
            x = activate(self._layers.product(x, LinearLayer(up, self._name(layer, f"{place}.up_proj"))))
            return self._layers.product(x, LinearLayer(down, last))
        rows, more = slice(None), slice(None)
        if not self._layers.has(gate):
            half = self._tensors.shape(f"{up}.weight")[0] // 2
            gate, rows, more = up, slice(half), slice(half, None)
        # Not as one product: OpenVINO applies the gate's activation before it rounds to bf16.
        gated = self._layers.product(x, LinearLayer(gate, self._name(layer, f"{place}.gate_proj"), rows))
        if self._sparsity and math.isfinite(self._sparsity[layer]):
            gated = layers.sparse(gated, self._sparsity[layer])
        shown = self._layers.product(x, LinearLayer(up, self._name(layer, f"{place}.up_proj"), more))
        return self._layers.product(ops.multiply(activate(gated), shown), LinearLayer(down, last))

    def _activation(self, layer: int) -> Callable[[Any], Any]:
        """Returns the activation function of a layer's feed-forward network."""
        if self._row.activation != "xielu":
            return layers.ACTIVATIONS[self._row.activation]
        numbers = [self._header.metadata[f"xielu.{name}"][layer] for name in ("alpha_p", "alpha_n", "beta", "eps")]
        return lambda x: layers.xielu(x, *numbers)

    def _window(self, layer: int) -> int:
        pattern = self._header.metadata.get(f"{self._header.architecture}.attention.sliding_window_pattern")
        period = pattern if type(pattern) is int else self._row.window_period
        listed = isinstance(pattern, list) and layer < len(pattern)
        local = bool(pattern[layer]) if listed else bool(period and self._in_period(layer, period))
        return self._header.number("attention.sliding_window") or self._row.window if local else 0

    def _angles(self, positions: Any, rotated: int, local: bool) -> layers.Cosine:
        """Returns the cosines and sines of RoPE for positions.

        Args:
            positions: The positions of the tokens [tokens], or [3, tokens] by time, row and column.
            rotated: The number of a head's elements that RoPE rotates.
            local: Whether the layer has a sliding window.
        """
        local = local and (self._row.unscaled_windows or bool(self._row.local_base))
        if local not in self._turned:
            if local:
                usual = self._row.local_base or self._header.real("rope.freq_base", 10000.0)
                base = self._header.real("rope.freq_base_swa", usual)
                found, factor = base ** -(np.arange(0, rotated, 2, dtype=np.float64) / rotated), 1.0
            else:
                whole = self._row.whole_ramp
                found, factor = frequencies(self._header, self._tensors, rotated, whole_ramp=whole)
            numbers = found.astype(np.float32)
            if positions.get_output_partial_shape(0).rank.get_length() > 1:
                numbers = self._by_axes(numbers)
            self._turned[local] = layers.angles(positions, numbers, factor)
        return self._turned[local]

    def _by_axes(self, numbers: layers.Floats) -> layers.Floats:
        """Returns frequencies [pairs, 3], each in the column of the axis whose positions rotate the pair, 0 in the
        others."""
        sections, axes = self._header.numbers(SECTIONS)[:3], np.zeros(len(numbers), np.int64)
        if self._row.interleaved:
            for axis in (1, 2):
                axes[axis : 3 * sections[axis] : 3] = axis
        else:
            behind = np.repeat(np.arange(3), sections)[: len(axes)]
            axes[: len(behind)] = behind
        found: layers.Floats = np.where(axes[:, None] == np.arange(3), numbers[:, None], np.float32(0))
        return found


def _kept(x: Any, wanted: Any) -> Any:
    """Returns the tokens of x with these indices, or all if there are no indices."""
    return x if wanted is None else ops.gather(x, wanted, np.array([0]))


def _by_heads(x: Any, matrices: layers.Floats) -> Any:
    """Multiplies the vectors of each head [tokens, heads, 1, columns] by the head's own matrix [rows, columns]."""
    order = np.array([1, 0, 2])
    by_heads = ops.transpose(ops.squeeze(x, np.array([2])), order)
    found = ops.matmul(by_heads, ops.constant(np.ascontiguousarray(matrices)), False, True)
    return ops.unsqueeze(ops.transpose(found, order), np.array([2]))


def _split(x: Any, *sizes: int) -> list[Any]:
    """Splits vectors in parts of these sizes."""
    found: list[Any] = ops.variadic_split(x, np.int64(-1), np.array(sizes)).outputs()
    return found
