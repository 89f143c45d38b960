"""A GGUF file as the network of a pooling model, whose input is a batch of padded texts, as in optimum-cli's exports.

All layers compute the tokens of a batch as one sequence; only attention divides them into texts. Padding is at the
right, so that a causal model does not see it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ....engine.paged.network import network_input
from ....errors import StartError
from ..architectures import ARCHITECTURES, ENCODERS
from ..header import EXPORT
from ..model_file import header_of
from . import layers
from .attention import Projected, masked
from .decoder import FileDecoder
from .encoder import FileEncoder
from .tensors import opened

log = logging.getLogger("lean_ovms.gguf")


def read(path: Path, output: str, *, exact: bool = False) -> ov.Model:
    """Builds the network of a GGUF file.

    Args:
        path: The path of the file.
        output: The output of the network: "logits" or "last_hidden_state".
        exact: Whether weights must keep their values, instead of being requantized where that is faster.

    Raises:
        StartError: The file cannot be served.
        RuntimeError: OpenVINO refuses the network.
    """
    header = header_of(path)
    ids, mask = (network_input(name, [-1, -1], np.int64) for name in ("input_ids", "attention_mask"))
    shape = ops.shape_of(ids, "i64")
    positions = _counted(ops.gather(shape, np.int64(1), np.int64(0)))
    encoder = header.architecture in ENCODERS
    logits = output == "logits"
    if encoder and logits and not header.classes:
        raise StartError(
            f"{path} cannot be served: an encoder does not compute logits of tokens; serve it with --task embeddings"
        )
    stated = header.metadata.get(f"{header.architecture}.attention.causal")
    causal = not encoder and ARCHITECTURES[header.architecture].causal and stated is not False

    @cache
    def attended(window: int, slopes: tuple[float, ...]) -> Any:
        seen = _seen(positions, mask, causal, window)
        return _sloped(seen, positions, slopes) if slopes else seen

    if not encoder and ARCHITECTURES[header.architecture].projected and "dense_2.weight" not in header.tensors:
        log.warning(
            "%s lacks the model's final projections, so its vectors are not those of the original model: llama.cpp's "
            "converter writes them with --sentence-transformers-dense-modules",
            path.name,
        )
    texts = _Texts(path, shape, mask, attended, causal=causal)
    tokens, places = (ops.reshape(each, np.array([-1]), False) for each in (ids, ops.broadcast(positions, shape)))
    with opened(path, header, exact=exact) as tensors:
        if encoder:
            network = FileEncoder(tensors)
            found = _by_text(network.hidden(tokens, places, texts), shape)
            if logits:
                found = network.classes(found, mask)
        else:
            decoder = FileDecoder(tensors)
            found = decoder.hidden(tokens, places, texts)
            found = _by_text(found if logits else decoder.vectors(found), shape)
            if logits:
                head = decoder.head("cls.output" if header.classes else "output")
                found = ops.matmul(found, layers.whole(head), False, True)
    found.output(0).get_tensor().set_names({output})
    return ov.Model([found.output(0)], [ids, mask], "gguf")


class _Texts:
    """Builds attention and convolutions of a batch of padded texts; other layers that mix tokens are refused."""

    def __init__(
        self, path: Path, shape: Any, mask: Any, seen: Callable[[int, tuple[float, ...]], Any], *, causal: bool
    ) -> None:
        """Keeps the shape of the batch and its masks.

        Args:
            path: The path of the file, for errors.
            shape: The number of texts, and the padded number of tokens of each, as an output.
            mask: The mask of the tokens that are not padding [texts, tokens].
            seen: Returns the mask of the tokens to which each token attends, given the size of the sliding window and
                the slopes of the heads.
            causal: Whether no token depends on tokens after it.
        """
        self._path = path
        self._shape = shape
        self._mask = mask
        self._seen = seen
        self._causal = causal

    def attend(self, rows: Projected) -> Any:
        """Returns the result of an attention in which each token attends only to tokens of its own text."""
        if rows.sinks is not None:
            raise self._refusal("attention sinks")
        return masked(rows, self._shape, self._seen(rows.window, rows.slopes))

    def convolve(self, values: Any, weights: layers.Floats, bias: layers.Floats | None = None) -> Any:
        """Returns a convolution over the tokens of each text [tokens, channels].

        If the network is not causal, the kernel's middle is at the token itself.
        """
        channels, length = weights.shape
        before = length - 1 if self._causal else (length - 1) // 2
        real = ops.convert(ops.unsqueeze(self._mask, np.int64(2)), "f32")
        by_channel = ops.transpose(ops.multiply(_by_text(values, self._shape), real), np.array([0, 2, 1]))
        kernels = weights.reshape(channels, 1, 1, length)
        found = ops.group_convolution(by_channel, kernels, [1], [before], [length - 1 - before], [1])
        found = ops.reshape(ops.transpose(found, np.array([0, 2, 1])), np.array([-1, channels]), False)
        return found if bias is None else ops.add(found, bias)

    def remember(self, rows: list[Any]) -> Any:
        """Raises StartError, since batches of texts are not supported with delta nets."""
        raise self._refusal("gated delta nets")

    def scan(self, rows: list[Any]) -> Any:
        """Raises StartError, since batches of texts are not supported with state spaces."""
        raise self._refusal("selective state spaces")

    def _refusal(self, what: str) -> StartError:
        """Returns the error for a model with layers that are not supported in batches of texts."""
        return StartError(f"{self._path} cannot be served: {what} are not supported in pooling models; {EXPORT}")


def _by_text(rows: Any, shape: Any) -> Any:
    """Divides the rows of all tokens into texts [texts, tokens, width]."""
    width = rows.get_output_partial_shape(0)[-1].get_length()
    return ops.reshape(rows, ops.concat([shape, ops.constant(np.array([width]))], 0), False)


def _seen(positions: Any, mask: Any, causal: bool, window: int) -> Any:
    """Returns the mask [texts or 1, 1, tokens, tokens] of the tokens to which each token attends.

    Args:
        positions: The positions of the tokens of a text.
        mask: The mask of the tokens that are not padding [texts, tokens].
        causal: Whether a token does not attend to tokens after it.
        window: The size of the sliding window in tokens: with causal attention the token itself and those before it,
            otherwise half as many on each side. 0 if there is none.
    """
    back = ops.subtract(ops.unsqueeze(positions, np.int64(1)), ops.unsqueeze(positions, np.int64(0)))
    if causal:
        seen = ops.greater_equal(back, np.int64(0))
        if window:
            seen = ops.logical_and(seen, ops.less(back, np.int64(window)))
        return ops.unsqueeze(seen, np.array([0, 1]))
    seen = ops.convert(ops.unsqueeze(mask, np.array([1, 2])), "boolean")
    if window:
        near = ops.less_equal(ops.absolute(back), np.int64(window // 2))
        # Padding attends to itself: without any token the result would be NaN, also when multiplied by 0.
        itself = ops.equal(back, np.int64(0))
        seen = ops.logical_or(ops.logical_and(seen, ops.unsqueeze(near, np.array([0, 1]))), itself)
    return seen


def _sloped(seen: Any, positions: Any, slopes: tuple[float, ...]) -> Any:
    """Returns the numbers [texts, heads, tokens, tokens] by which attention logits fall with the distance.

    Args:
        seen: The mask of the tokens to which each token attends.
        positions: The positions of the tokens of a text.
        slopes: The slope of each head.
    """
    # Integers, because bf16 has not every integer above 256.
    steps = ops.subtract(ops.unsqueeze(positions, np.int64(1)), ops.unsqueeze(positions, np.int64(0)))
    distance = ops.absolute(ops.convert(steps, "f32"))
    factors = -np.array(slopes, np.float32).reshape(1, -1, 1, 1)
    fallen = ops.multiply(ops.unsqueeze(distance, np.array([0, 1])), factors)
    # Added: a selection kept both its input and its result, each 3 GiB for 8,192 tokens and 12 heads in f32.
    return ops.add(fallen, ops.select(seen, np.float32(0), np.float32(-np.inf)))


def _counted(stop: Any) -> Any:
    """Returns the integers from 0 to `stop` - 1."""
    return ops.range(np.int64(0), stop, np.int64(1), "i64")
