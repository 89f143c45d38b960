"""The layers that all image encoders in mmproj files have, with bidirectional attention between patches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from openvino import opset13 as ops

from . import layers
from .file_layers import FileLayers, LinearLayer
from .tensors import Tensors

PATCHES = "v.patch_embd"
"""The layer that makes embeddings of patches."""
POSITIONS = "v.position_embd.weight"
"""The tensor of the embeddings of positions."""
CLASS = "v.class_embd"
"""The tensor of the embedding that stands for the class of an image."""
FACTOR = "vision.projector.scale_factor"
"""The metadata with the side, in patches, of the square that becomes one token."""
PROJECTOR_EPSILON = 1e-5
"""The epsilon of the norm in a projector, which is PyTorch's own one; files only have that of the encoder."""


class VisionTower:
    """Builds the layers of an image encoder from the tensors of a file."""

    activation = ""
    """The activation function of a kind of encoders whose files do not name it; "" if they do."""
    gelu = "tanh"
    """The kind of GELU in encoders whose files name it: "erf", or "tanh" for its approximation."""

    def __init__(self, tensors: Tensors) -> None:
        """Reads the sizes of the network from the header.

        Args:
            tensors: The tensors of the file.
        """
        self.header = header = tensors.header
        self.tensors = tensors
        self.layers = FileLayers(tensors, header.real("vision.attention.layer_norm_epsilon", 1e-6), adapted=False)
        self.width = header.number("vision.embedding_length")
        self.heads = header.number("vision.attention.head_count")
        self.count = header.number("vision.block_count")
        self.side = header.number("vision.image_size")
        self.patch = header.number("vision.patch_size")

    def embedded(self, images: Any) -> Any:
        """Returns the embeddings of patches [images, patches, width] for pixels [images, RGB, height, width]."""
        weights, none = self.tensors.numbers(f"{PATCHES}.weight"), np.array([0, 0])
        found = ops.convolution(images, ops.constant(weights), np.array([self.patch] * 2), none, none, np.array([1, 1]))
        found = ops.transpose(ops.reshape(found, np.array([0, 0, -1]), True), np.array([0, 2, 1]))
        bias = f"{PATCHES}.bias"
        return ops.add(found, self.tensors.numbers(bias)) if bias in self.tensors else found

    def placed(self, x: Any) -> Any:
        """Adds embeddings of positions to patches [images, patches, width], after a class token if there is one."""
        if CLASS in self.tensors:
            x = ops.concat([for_each(x, self.tensors.numbers(CLASS).reshape(1, -1)), x], 1)
        return ops.add(x, self.tensors.numbers(POSITIONS).reshape(1, -1, self.width))

    def interpolated(self, rows: Any, columns: Any) -> Any:
        """Returns the embeddings of positions [1, patches, width] for a grid of another size than that of the table.

        Args:
            rows: The shares of the table's rows in each row of patches [rows, side of the table].
            columns: The shares of its columns in each column of patches.
        """
        table = self.tensors.numbers(POSITIONS)
        side = math.isqrt(len(table))
        found = ops.matmul(rows, table.reshape(side, -1), False, False)
        found = ops.matmul(columns, ops.reshape(found, np.array([0, side, self.width]), True), False, False)
        return ops.reshape(found, np.array([1, -1, self.width]), False)

    def encoded(self, x: Any, attend: Callable[[int, list[Any]], Any] | None = None) -> Any:
        """Returns the result of all layers [images, patches, width].

        Args:
            x: The embeddings of patches.
            attend: Computes a layer's attention, given its number and its queries, keys and values; None for attention
                between all patches of an image.
        """
        for layer in range(self.count):
            x = self.layer(layer, x, attend)
        return x

    def layer(self, number: int, x: Any, attend: Callable[[int, list[Any]], Any] | None = None) -> Any:
        """Returns the result of one layer [images, patches, width]."""
        name = f"v.blk.{number}"
        values = [self._by_heads(value) for value in self._projected(name, self.norm(x, f"{name}.ln1"))]
        found = attention(values) if attend is None else attend(number, values)
        found = ops.reshape(ops.transpose(found, np.array([0, 2, 1, 3])), np.array([0, 0, -1]), True)
        found = self.norm(self.product(found, f"{name}.attn_out"), f"{name}.attn_post_norm")
        x = ops.add(x, self._scaled(found, f"{name}.ls1"))
        found = self.norm(self._forward(name, self.norm(x, f"{name}.ln2")), f"{name}.ffn_post_norm")
        return ops.add(x, self._scaled(found, f"{name}.ls2"))

    def norm(self, x: Any, name: str) -> Any:
        """Applies the norm of this name: a layer norm if it has a bias, else an RMS norm, or none if there is none."""
        return self.layers.layer_norm(x, name) if f"{name}.bias" in self.tensors else self.layers.norm(x, name)

    def projector_norm(self, x: Any, name: str) -> Any:
        """Applies the layer norm of a projector, or returns x unchanged if the file has none of this name."""
        found = FileLayers(self.tensors, PROJECTOR_EPSILON, adapted=False)
        return found.layer_norm(x, name) if found.has(name) else x

    def product(self, x: Any, name: str) -> Any:
        """Returns the result of the linear layer of this name."""
        return self.layers.product(x, LinearLayer(name, ""))

    def _scaled(self, x: Any, name: str) -> Any:
        """Multiplies the elements of values by the factors of this name, where the file has some."""
        scales = f"{name}.weight"
        return ops.multiply(x, self.tensors.numbers(scales)) if scales in self.tensors else x

    def _projected(self, name: str, x: Any) -> list[Any]:
        """Returns queries, keys and values [images, patches, width]."""
        if not self.layers.has(f"{name}.attn_qkv"):
            return self.layers.products(x, [LinearLayer(f"{name}.attn_{letter}", "") for letter in "qkv"])
        return ops.split(self.product(x, f"{name}.attn_qkv"), np.int64(2), 3).outputs()  # type: ignore[no-any-return]

    def _by_heads(self, x: Any) -> Any:
        """Splits values [images, patches, width] into heads [images, heads, patches, size of a head]."""
        shape = np.array([0, 0, self.heads, self.width // self.heads])
        return ops.transpose(ops.reshape(x, shape, True), np.array([0, 2, 1, 3]))

    def gated(self, x: Any, up: str, gate: str, down: str) -> Any:
        """Returns the result of a gated feed-forward network of the layers with these names."""
        return self.product(ops.multiply(self.activated(self.product(x, gate)), self.product(x, up)), down)

    def _forward(self, name: str, x: Any) -> Any:
        """Returns the result of a layer's feed-forward network, which is gated if the file has a gate."""
        up, down = f"{name}.ffn_up", f"{name}.ffn_down"
        if self.tensors.shape(f"{down}.weight")[-1] == self.width != self.tensors.shape(f"{up}.weight")[-1]:
            up, down = down, up  # llama.cpp's first converters swapped these names
        if self.layers.has(f"{name}.ffn_gate"):
            return self.gated(x, up, f"{name}.ffn_gate", down)
        return self.product(self.activated(self.product(x, up)), down)

    def activated(self, x: Any) -> Any:
        """Applies the activation function: SiLU or GELU as the file says, else OpenAI's approximation of GELU."""
        if self.activation:
            return layers.ACTIVATIONS[self.activation](x)
        silu, gelu = (self.header.metadata.get(f"clip.use_{name}") for name in ("silu", "gelu"))
        if silu:
            return ops.swish(x)
        if gelu:
            return ops.gelu(x, self.gelu)
        return ops.multiply(x, ops.sigmoid(ops.multiply(x, np.float32(1.702))))


def attention(values: list[Any], mask: Any = None, scale: float = 0.0) -> Any:
    """Returns the result of an attention [images, heads, patches, size of a head].

    Args:
        values: The queries, keys and values of all heads.
        mask: A mask that is added to the products of queries and keys; None if there is none.
        scale: The factor of these products; 0 for the one that follows from the size of a head.
    """
    size = values[0].get_output_partial_shape(0)[-1].get_length()
    factor = ops.constant(np.float32(scale or 1 / math.sqrt(size)))
    none = ops.constant(np.zeros((1, 1, 1, 1), np.float32))
    return ops.scaled_dot_product_attention(*values, none if mask is None else mask, factor)


def for_each(x: Any, rows: NDArray[np.float32]) -> Any:
    """Returns constant rows [rows, width] for each of the images whose values are x [images, patches, width]."""
    images = ops.slice(ops.shape_of(x), *map(np.array, ([0], [1], [1], [0])))
    return ops.broadcast(ops.constant(rows[None]), ops.concat([images, np.array(rows.shape)], 0))


def without_class(x: Any) -> Any:
    """Returns the patches of values [images, class token and patches, width]."""
    return ops.slice(x, *map(np.array, ([1], [layers.END], [1], [1])))


def shuffled(x: Any, grid: tuple[Any, Any], by: int) -> Any:
    """Joins the elements of adjacent patches [images, tokens, by x by x width].

    Args:
        x: The patches of images of one size [images, patches, width].
        grid: The numbers of rows and columns of tokens, each as [1].
        by: The number of patches in a row of the square that becomes one token.
    """
    width, side = x.get_output_partial_shape(0)[-1].get_length(), np.array([by])
    shape = ops.concat([np.array([-1]), grid[0], side, grid[1], side, np.array([width])], 0)
    found = ops.transpose(ops.reshape(x, shape, False), np.array([0, 1, 3, 2, 4, 5]))
    return ops.reshape(found, np.array([0, -1, by * by * width]), True)
