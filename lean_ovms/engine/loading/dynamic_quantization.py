"""Chooses how many values get one scale where OpenVINO rounds the inputs of products to 8 bits.

These are the products with compressed weights, and by default it is 32 values, whatever the weights are. A product
takes less time with more of them, but only if they divide the elements that have one scale in the weights: where they
do not, OpenVINO (2026.4) rounds nothing, and a step of eight sequences takes twice as long. A row of weights with one
scale may have any width.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

OPTION = ("runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE")
"""Where a network says it; OpenVINO's property of the second name wins."""
GROUPS = (128, 64)
"""The numbers that are tried, the largest first, before OpenVINO's own."""
LEAST_ELEMENTS = 1 << 30
"""The elements of compressed weights from which on a network gets another number than OpenVINO's own.

Smaller ones gain less and lose more: the perplexity of SmolLM2-135M in int8 grows by 0.6 % with 64 and by 1 % with 128,
that of Qwen2.5-Coder 1.5B with weights of the same form by nothing that can be told from chance.
"""
NEARLY_ALL = 0.95
"""The part of the elements of all compressed weights that a number has to suit."""
COMPRESSED_BITS = 8
"""The most bits of an element of compressed weights."""
DECOMPRESSION = ("Convert", "Subtract", "Multiply", "Reshape")
"""What makes floats of compressed weights."""


def choose(model: Any) -> None:
    """Makes the number that suits the weights of a network its own, which options win over, as those of its file do."""
    if not model.has_rt_info([*OPTION]) and (group := group_of(model)):
        model.set_rt_info(str(group), [*OPTION])


def group_of(model: Any) -> int:
    """Returns the largest of GROUPS that suits the weights of a network; 0: OpenVINO's own is the best."""
    elements = Counter[int]()  # by how many have one scale; 0: a whole row
    for node in model.get_ops():
        if node.get_type_name() == "MatMul":
            size, count = _scaled(node)
            elements[size] += count
    if elements.total() < LEAST_ELEMENTS:
        return 0
    for group in GROUPS:
        suited = sum(count for size, count in elements.items() if size % group == 0)
        if suited >= NEARLY_ALL * elements.total():
            return group
    return 0


def _scaled(product: Any) -> tuple[int, int]:
    """Returns how many elements of a product's weights have one scale, 0 for a whole row, and how many it has in all.

    The latter is 0 where they are not compressed.
    """
    weights = node = product.input_value(1).get_node()
    while node.get_type_name() in DECOMPRESSION:
        node = node.input_value(0).get_node()
    kind = node.get_output_element_type(0)
    if node.get_type_name() != "Constant" or node is weights or kind.is_real() or kind.bitwidth > COMPRESSED_BITS:
        return 0, 0
    axis = -1 if product.get_attributes()["transpose_b"] else -2
    shape, width = node.get_output_shape(0), weights.get_output_shape(0)[axis]
    return 0 if shape[axis] == width else shape[axis], math.prod(shape)
