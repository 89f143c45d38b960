"""From the network's output of a batch to the rows of each request: cut, normalize, activate. Knows no openvino."""

from __future__ import annotations

import numpy as np

from ...pooling_types import CLASSIFY, SCORE, VECTORS, PoolingInfo, PoolingParams
from .pooler import Array


def finished(rows: Array, info: PoolingInfo, params: PoolingParams) -> Array:
    """Returns what a client gets of these rows of the network's output: float32 [n, width]."""
    if info.kind in VECTORS:
        if params.dimensions is not None:
            rows = rows[:, : params.dimensions]
        normalizes = info.normalize if params.normalize is None else params.normalize
        return _normalized(rows) if normalizes else rows
    if info.kind == SCORE:
        return _scores(rows, info, params)
    if not params.activation or info.activation == "none":
        return rows
    return _sigmoid(rows) if info.kind == CLASSIFY and info.activation == "sigmoid" else _softmax(rows)


def _scores(rows: Array, info: PoolingInfo, params: PoolingParams) -> Array:
    """Returns one number per row; of two outputs it is the second's. A logit is what the sigmoid of is the score."""
    if info.outputs > 1 and info.activation == "softmax" and params.activation:
        return _softmax(rows)[:, -1:]
    logits = rows[:, -1:]
    return logits if not params.activation or info.activation == "none" else _sigmoid(logits)


def _normalized(rows: Array) -> Array:
    lengths = np.sqrt(np.add.reduce(rows * rows, axis=1, keepdims=True))
    return rows / np.maximum(lengths, 1e-12)


def _sigmoid(values: Array) -> Array:
    found: Array = 1 / (1 + np.exp(-np.clip(values, -80, 80)))
    return found


def _softmax(rows: Array) -> Array:
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    found: Array = powers / powers.sum(axis=-1, keepdims=True)
    return found
