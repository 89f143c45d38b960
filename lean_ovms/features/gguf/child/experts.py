"""Mixtures of experts, in the forms for which OpenVINO's CPU plugin computes only the experts of each token.

Experts with gates have two patterns. As written, a pattern computes all experts: the tokens are repeated for each, and
the results of experts that a token does not use are multiplied by 0. OpenVINO replaces the pattern by products that
gather the experts of each token. Experts without gates, or with another activation function, have no pattern, and use
OpenVINO's operation GroupedMatMul.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from openvino import opset13 as ops
from openvino import opset15, opset17

from .layers import ACTIVATIONS, END, Floats, limited, times

SLOPE, LIMIT = 1.702, 7.0
"""The factor inside the activation function of gpt-oss's gate, and the limit to which the gate is clamped."""

MATCHED = ("silu", "gelu")
"""The activation functions of the patterns."""
NEAR = 0.02
"""How much lower scores may be, relative to their size, that SparseMixer compares: twice the noise of its training."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a layer, with matrices [experts, rows, columns] as outputs of 32-bit floats."""

    count: int
    """The number of experts."""
    down: Any
    """The down projections."""
    up: Any = None
    """The up projections; None if they are joined with the gate projections."""
    gate: Any = None
    """The gate projections; None if experts have no gates. If the up projections are joined with them, rows of both
    alternate."""
    activation: str = "silu"
    """The name in ACTIVATIONS of the activation function of the gates, or without gates of the up projections."""
    limit: float = 0.0
    """The largest value of an activated gate, and the largest absolute value of an up projection; 0 without limits."""
    biases: tuple[Floats, Floats] | None = None
    """The biases [experts, rows] of the joined gate and up projections and of the down projections; None without
    biases."""


Chosen = tuple[Any, Any]
"""The experts of each token and their weights [tokens, experts of a token]."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a layer's experts, of which a token uses only some."""

    count: int
    """The number of groups, of as many experts each; experts of a group follow each other."""
    used: int
    """The number of groups whose experts a token can use."""


def chosen(scores: Any, used: int, *, sums_to_one: bool, factor: float = 1.0, groups: Groups | None = None) -> Chosen:
    """Selects the experts with the highest scores for each token, with weights by softmax.

    Args:
        scores: The scores of the experts [tokens, experts].
        used: The number of experts that a token uses.
        sums_to_one: Whether the softmax is over the selected experts; otherwise it is over all experts.
        factor: The factor by which the weights are multiplied in the end.
        groups: The groups of experts, which are ranked by their best expert; None if there are none.
    """
    shares = scores if sums_to_one else ops.softmax(scores, -1)
    ranked = shares if groups is None else _in_best_groups(shares, groups, 1)
    best = ops.topk(ranked, np.int64(used), -1, "max", "value")
    weights = ops.softmax(best.output(0), -1) if sums_to_one else best.output(0)
    return best.output(1), times(weights, factor)


def chosen_apart(
    scores: Any,
    used: int,
    *,
    bias: Floats | None,
    sums_to_one: bool,
    factor: float,
    groups: Groups | None = None,
    softmax: bool = False,
) -> Chosen:
    """Selects the experts with the highest scores for each token, whose weights do not depend on the selection.

    Args:
        scores: The scores of the experts [tokens, experts].
        used: The number of experts that a token uses.
        bias: A number for each expert that is added for the selection only; None if there is none.
        sums_to_one: Whether the weights are divided by their sum.
        factor: The factor by which the weights are multiplied in the end.
        groups: The groups of experts, which are ranked by the sum of their two best; None if there are none.
        softmax: Whether the weights are the softmax over all experts; otherwise each expert has its sigmoid.
    """
    each = ops.softmax(scores, -1) if softmax else ops.sigmoid(scores)
    ranked = each if bias is None else ops.add(each, bias[None])
    ranked = ranked if groups is None else _in_best_groups(ranked, groups, 2)
    ids = ops.topk(ranked, np.int64(used), -1, "max", "value").output(1)
    weights = ops.gather_elements(each, ids, 1)
    if sums_to_one:
        weights = ops.divide(weights, ops.add(ops.reduce_sum(weights, np.array([1]), True), np.float32(1e-6)))
    return ids, times(weights, factor)


def chosen_one_by_one(scores: Any, used: int) -> Chosen:
    """Selects the experts with the highest scores for each token, one after the other (SparseMixer, arXiv:2409.12136).

    The weight of each is its softmax among those of the remaining experts whose scores are not much lower.

    Args:
        scores: The scores of the experts [tokens, experts].
        used: The number of experts that a token uses.
    """
    best, ids = ops.topk(scores, np.int64(used), -1, "max", "value").outputs()
    weights = []
    for place, highest in enumerate(ops.split(best, np.int64(1), used).outputs()):
        taken = ops.slice(ids, *(np.array([each]) for each in (0, place, 1, 1)))
        none = ops.broadcast(ops.constant(np.float32(-np.inf)), ops.shape_of(taken))
        left = ops.scatter_elements_update(scores, taken, none, np.int64(1)) if place else scores
        lower = ops.divide(ops.subtract(highest, scores), ops.maximum(ops.abs(scores), highest))
        near = ops.select(ops.greater(lower, np.float32(NEAR)), np.float32(-np.inf), left)
        weights.append(ops.reduce_max(ops.softmax(near, -1), np.array([1]), True))
    return ids, ops.concat(weights, 1)


def _in_best_groups(ranked: Any, groups: Groups, best: int) -> Any:
    """Returns the ranks of a token's experts, which are -inf outside of its best groups.

    Args:
        ranked: The ranks of the experts [tokens, experts].
        groups: The groups of experts.
        best: The number of experts by whose sum a group is ranked.
    """
    count = ranked.get_output_partial_shape(0)[-1].get_length()
    by_group = ops.reshape(ranked, np.array([0, groups.count, count // groups.count]), True)
    sums = ops.reduce_sum(ops.topk(by_group, np.int64(best), -1, "max", "value").output(0), np.array([2]), False)
    kept = ops.topk(sums, np.int64(groups.used), -1, "max", "value").output(1)
    none = ops.broadcast(ops.constant(np.float32(-np.inf)), ops.shape_of(sums))
    zeros = ops.broadcast(ops.constant(np.float32(0)), ops.shape_of(kept))
    added = ops.scatter_elements_update(none, kept, zeros, np.int64(1))
    return ops.reshape(ops.add(by_group, ops.unsqueeze(added, np.int64(2))), np.array([0, count]), True)


def mixed(x: Any, own: Chosen, experts: Experts) -> Any:
    """Returns the weighted sum of the results of each token's experts.

    Args:
        x: The tokens [tokens, 1, width].
        own: The experts of each token, and their weights.
        experts: The experts of the layer.
    """
    width = x.get_output_partial_shape(0)[-1].get_length()
    ids, weights = own
    rows = ops.reshape(x, np.array([-1, width]), False)
    if experts.gate is None or experts.activation not in MATCHED or experts.limit:
        return _grouped(rows, own, experts)
    repeated = ops.tile(rows, np.array([experts.count, 1]))
    repeated = ops.reshape(repeated, np.array([experts.count, -1, width]), False)
    found = _gated(repeated, experts) if experts.biases is None else _clamped(repeated, experts, *experts.biases)
    found = ops.reshape(found, np.array([experts.count, -1, 1, width]), False)
    tokens = ops.gather(ops.shape_of(rows), np.array([0]), np.int64(0))
    none = ops.broadcast(ops.constant(np.float32(0)), ops.concat([tokens, np.array([experts.count])], 0))
    each = ops.scatter_elements_update(none, ids, weights, np.int64(1))
    each = ops.reshape(ops.transpose(each, np.array([1, 0])), np.array([experts.count, -1, 1]), False)
    return ops.reduce_sum(ops.multiply(found, ops.unsqueeze(each, np.int64(3))), np.array([0]), False)


def _grouped(rows: Any, own: Chosen, experts: Experts) -> Any:
    """Returns the weighted sum of the results of each token's experts [tokens, 1, width].

    There is a row for each expert of each token. The rows are sorted by their experts, and afterwards by tokens again.

    Args:
        rows: The tokens [tokens, width].
        own: The experts of each token, and their weights.
        experts: The experts of the layer.
    """
    ids, weights = own
    used = ids.get_partial_shape()[1].get_length()
    each = ops.reshape(ids, np.array([-1]), False)
    count = ops.gather(ops.shape_of(each), np.int64(0), np.int64(0))
    by_expert, order = ops.topk(each, count, 0, "min", "value").outputs()
    ends = opset15.search_sorted(by_expert, np.arange(experts.count, dtype=np.int32), right_mode=True)
    shown = ops.gather(rows, ops.divide(order, np.int32(used)), np.int64(0))
    before = opset17.grouped_matmul(shown, experts.up, ends)
    if experts.gate is None:
        shown = ACTIVATIONS[experts.activation](before)
    else:
        gate = ACTIVATIONS[experts.activation](opset17.grouped_matmul(shown, experts.gate, ends))
        shown = ops.multiply(*limited(gate, before, experts.limit))
    found = opset17.grouped_matmul(shown, experts.down, ends)
    by_token = ops.gather(found, ops.topk(order, count, 0, "min", "value").output(1), np.int64(0))
    by_token = ops.reshape(by_token, np.array([-1, used, experts.down.get_shape()[1]]), False)
    return ops.reduce_sum(ops.multiply(by_token, ops.unsqueeze(weights, np.int64(2))), np.array([1]), True)


def _gated(x: Any, experts: Experts) -> Any:
    """Returns the results of all experts for all tokens [experts, tokens, width]."""
    gate = ops.matmul(x, experts.gate, False, True)
    if experts.activation == "silu":
        # Not ops.swish, because OpenVINO's pattern for experts does not match its second input.
        shown = ops.multiply(gate, ops.sigmoid(gate))
    else:
        shown = ACTIVATIONS[experts.activation](gate)
    return ops.matmul(ops.multiply(shown, ops.matmul(x, experts.up, False, True)), experts.down, False, True)


def _clamped(x: Any, experts: Experts, bias: Floats, last_bias: Floats) -> Any:
    """Returns the results of all experts of gpt-oss [experts, tokens, width], with biases and clamped values.

    Args:
        x: The tokens, repeated for each expert.
        experts: The experts of the layer.
        bias: The biases of the joined gate and up projections.
        last_bias: The biases of the down projections.
    """
    joined = ops.add(ops.matmul(x, experts.gate, False, True), bias[:, None])
    gate, up = (ops.slice(joined, *(np.array([value]) for value in (start, END, 2, 2))) for start in (0, 1))
    gated = ops.swish(ops.minimum(gate, np.float32(LIMIT)), np.float32(SLOPE))
    shown = ops.add(ops.clamp(up, -LIMIT, LIMIT), np.float32(1))
    return ops.add(ops.matmul(ops.multiply(shown, gated), experts.down, False, True), last_bias[:, None])
