"""Builds linear layers and norms from the tensors of a file."""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from openvino import opset13 as ops

from . import layers
from .tensors import Order, TensorRows, Tensors

BARE = ("attn_norm", "ffn_norm", "output_norm")
"""The ends of the names of norms that have no weights in some architectures."""


class LinearLayer(NamedTuple):
    """A linear layer, whose matrix is a tensor or a part of its rows."""

    tensor: str
    """The name of the tensor, without ".weight"."""
    name: str
    """The name of the layer in transformers; "" if adapters cannot change it."""
    rows: slice = slice(None)
    """The rows of the tensor that are used."""
    order: Order | None = None
    """The order of these rows in the matrix; None for the order of the tensor."""

    @property
    def matrix(self) -> TensorRows:
        """The selected rows of the tensor, which are the matrix of the layer."""
        return TensorRows(f"{self.tensor}.weight", self.rows, self.order)

    @property
    def bias(self) -> str:
        """The name of the tensor with the bias."""
        return f"{self.tensor}.bias"


class FileLayers:
    """Builds the kinds of layers that all networks have from the tensors of a file."""

    def __init__(
        self, tensors: Tensors, epsilon: float, *, adapted: bool, centred: bool = False, bare: bool = False
    ) -> None:
        """Keeps the tensors and the settings of layers.

        Args:
            tensors: The tensors of the file.
            epsilon: The number that norms add to the mean of squares.
            adapted: Whether layers that could be joined to one matrix product stay apart, so that adapters can change
                each.
            centred: Whether norms subtract the mean.
            bare: Whether the file has no weights of the norms in BARE.
        """
        self._centred = centred
        self._bare = bare
        self._tensors = tensors
        self._epsilon = epsilon
        self._adapted = adapted
        self.sums = layers.Sums()

    def products(self, x: Any, parts: list[LinearLayer]) -> list[Any]:
        """Returns the results of linear layers on x.

        Layers of one type are joined to one product unless `adapted` is set.
        """
        found = []
        for _, same in groupby(parts, self._joins):
            together = [*same]
            if self._adapted or len(together) == 1:
                found += [self.product(x, one) for one in together]
            else:
                sizes = [self._tensors.count(one.matrix) for one in together]
                found += ops.variadic_split(self.product(x, *together), np.int64(-1), np.array(sizes)).outputs()
        return found

    def _joins(self, layer: LinearLayer) -> tuple[int, bool]:
        """Returns the properties that layers must share to be joined: the type of the tensor, and whether there is a
        bias."""
        return self._tensors.kind(layer.matrix.tensor), layer.bias in self._tensors

    def product(self, x: Any, *together: LinearLayer) -> Any:
        """Returns the result of joined linear layers on x, with their biases; the rows of the layers
        follow each other."""
        matrix = self._tensors.matrix(*(one.matrix for one in together))
        biases = [self._bias(one) for one in together if one.bias in self._tensors]
        name = together[0].name if len(together) == 1 else ""
        return layers.product(x, matrix, self.sums, np.concatenate(biases) if biases else None, name)

    def _bias(self, layer: LinearLayer) -> layers.Floats:
        found = self._tensors.numbers(layer.bias)[layer.rows]
        return found if layer.order is None else found[layer.order]

    def norm(self, x: Any, name: str, order: Order | None = None) -> Any:
        """Applies the norm of this name, or returns x unchanged if the file has none.

        Args:
            x: The values.
            name: The name of the norm.
            order: The order of the elements of x in the file; None if x has them in this order.
        """
        if not self.has(name):
            return self.unit_norm(x) if self._bare and name.endswith(BARE) else x
        if self._centred:
            return self.layer_norm(x, name)
        weights = self._tensors.numbers(self._weights(name))
        return layers.norm(x, weights if order is None else weights[order], self._epsilon)

    def layer_norm(self, x: Any, name: str) -> Any:
        """Returns values with a mean of 0 and a variance of 1, multiplied by a weight, and with the bias if there is
        one."""
        found = ops.mvn(x, np.array([-1]), True, self._epsilon, "inside_sqrt")
        found = ops.multiply(found, self._tensors.numbers(f"{name}.weight"))
        bias = f"{name}.bias"
        return ops.add(found, self._tensors.numbers(bias)) if bias in self._tensors else found

    def unit_norm(self, x: Any) -> Any:
        """Applies a norm without weights."""
        if self._centred:
            return ops.mvn(x, np.array([-1]), True, self._epsilon, "inside_sqrt")
        size = layers.partial_shape(x)[-1].get_length()
        return layers.norm(x, np.ones(size, np.float32), self._epsilon)

    def has(self, name: str) -> bool:
        """Returns whether there is a layer of this name."""
        return self._weights(name) in self._tensors

    def _weights(self, name: str) -> str:
        """Returns the name of the tensor with a layer's weights; Falcon-H1 has norms whose tensors have no suffix."""
        return name if name in self._tensors else f"{name}.weight"


def halves(heads: int, size: int, rotated: int, plain: int = 0) -> Order:
    """Returns the order of rows that turns RoPE's adjacent pairs into pairs of elements of two halves.

    Args:
        heads: The number of heads.
        size: The number of rows of a head.
        rotated: The number of rows of a head that RoPE rotates.
        plain: The number of rows of a head before the rotated ones.
    """
    order, turned = np.arange(heads * size).reshape(heads, size), slice(plain, plain + rotated)
    order[:, turned] = order[:, turned].reshape(heads, -1, 2).swapaxes(1, 2).reshape(heads, rotated)
    return order.reshape(-1)
