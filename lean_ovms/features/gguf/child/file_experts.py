"""Builds the experts of a decoder from the tensors of a file, and the router that chooses among them."""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import opset13 as ops

from ..architectures import Architecture
from .experts import Chosen, Experts, Groups, chosen, chosen_apart, chosen_one_by_one, mixed
from .file_layers import FileLayers, LinearLayer
from .tensors import Tensors

SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 1, 2, 3
"""The numbers of the functions that make weights of scores; with SIGMOID each expert has a weight of its own."""


class FileExperts:
    """Builds the mixtures of experts of a file's layers."""

    def __init__(self, tensors: Tensors, linear: FileLayers, row: Architecture) -> None:
        """Keeps what the experts are built from.

        Args:
            tensors: The tensors of the file.
            linear: Builds linear layers.
            row: The differences of the architecture.
        """
        self._header = tensors.header
        self._tensors = tensors
        self._layers = linear
        self._row = row

    def mixed(self, layer: int, x: Any, scored: Any) -> Any:
        """Returns the result of a mixture of experts.

        Args:
            layer: The number of the layer.
            x: The input of the experts.
            scored: The input of the router, which scores the experts.
        """
        scores = self._layers.product(ops.squeeze(scored, np.array([1])), LinearLayer(f"blk.{layer}.ffn_gate_inp", ""))
        count = self._tensors.shape(f"blk.{layer}.ffn_down_exps.weight")[0]
        own = self._chosen(layer, scores, count)
        if self._row.weighted_inputs:
            ids, shares = own
            x = ops.multiply(x, ops.unsqueeze(shares, np.int64(2)))
            own = ids, ops.add(ops.multiply(shares, np.float32(0)), np.float32(1))
        return mixed(x, own, self._experts(layer, count))

    def _experts(self, layer: int, count: int) -> Experts:
        """Returns the matrices of a layer's experts, and how these compute.

        Args:
            layer: The number of the layer.
            count: The number of experts.
        """
        gate, up, down, joined = (f"blk.{layer}.ffn_{part}_exps" for part in ("gate", "up", "down", "gate_up"))
        weights = [f"{each}.weight" for each in (gate, up)]
        last = self._tensors.experts(f"{down}.weight")
        if self._row.clamped:
            first, second, third = (self._tensors.numbers(f"{each}.bias") for each in (gate, up, down))
            biases = np.stack([first, second], 2).reshape(count, -1), third
            return Experts(count, last, gate=self._tensors.experts(*weights), biases=biases)
        if not self._row.gated:
            return Experts(count, last, up=self._tensors.experts(weights[1]), activation=self._row.activation)
        if self._layers.has(joined):
            first, second = (self._tensors.experts(f"{joined}.weight", half=place) for place in (0, 1))
        else:
            first, second = (self._tensors.experts(each) for each in weights)
        limit = self._header.real_of("swiglu_clamp_exp", layer)
        return Experts(count, last, gate=first, up=second, activation=self._row.activation, limit=limit)

    def _chosen(self, layer: int, scores: Any, count: int) -> Chosen:
        """Returns the experts of each token, and their weights.

        Args:
            layer: The number of the layer.
            scores: The scores of the experts [tokens, experts].
            count: The number of experts.

        Raises:
            ValueError: The header and the tensors do not fit each other, or the weights are computed in another way.
        """
        header, by_input = self._header, self._row.weighted_inputs
        used = header.number("expert_used_count")
        if not 0 < used <= count:
            raise ValueError(f"a token uses {used} of {count} experts")
        if by_input and used != 1:
            raise ValueError(f"a token uses {used} experts, and not one, whose input is multiplied by its weight")
        weighted = header.number("expert_gating_func") or (SIGMOID if self._row.sigmoids else 0)
        if weighted > SOFTMAX_OF_CHOSEN:
            raise ValueError(f"its experts are weighted by the function {weighted}, which is not supported")
        names = (f"blk.{layer}.exp_probs_b{end}" for end in (".bias", ""))
        bias = next((each for each in names if each in self._tensors), "")
        factor, groups = header.real("expert_weights_scale", 1.0), self._groups(count, used)
        normed = header.metadata.get(f"{header.architecture}.expert_weights_norm")
        if weighted == SIGMOID or bias or by_input:
            return chosen_apart(
                scores,
                used,
                bias=self._tensors.numbers(bias).reshape(-1) if bias else None,
                sums_to_one=(normed is not False or self._row.always_normed) and not by_input,
                factor=factor,
                groups=groups,
                softmax=self._row.softmax or weighted == SOFTMAX,
            )
        if self._row.one_by_one:
            return chosen_one_by_one(scores, used)
        sums_to_one = self._row.sums_to_one or normed is True or weighted == SOFTMAX_OF_CHOSEN
        ids, shares = chosen(scores, used, sums_to_one=sums_to_one, factor=factor, groups=groups)
        if (factors := f"blk.{layer}.ffn_down_exps.scale") in self._tensors:
            shares = ops.multiply(shares, ops.gather(self._tensors.numbers(factors), ids, np.int64(0)))
        return ids, shares

    def _groups(self, count: int, used: int) -> Groups | None:
        """Returns the groups of a layer's experts; None if a token can use all experts.

        Args:
            count: The number of experts.
            used: The number of experts that a token uses.

        Raises:
            ValueError: The experts are not divided among the groups, or there are too few in those of a token.
        """
        found = Groups(self._header.number("expert_group_count"), self._header.number("expert_group_used_count"))
        if found.count <= 1:
            return None
        size, rest = divmod(count, found.count)
        if rest or size < 2 or not 0 < found.used <= found.count or used > found.used * size:
            raise ValueError(f"{used} of {count} experts cannot be chosen from {found.used} of {found.count} groups")
        return found
