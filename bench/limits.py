"""What a machine could reach at most, measured: bytes read from memory a second, and multiply-adds in int8.

A generated token reads all weights, and the keys and values of its context; a prompt's token multiplies all weights but
those of the logits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from lean_ovms.repository import model_config
from lean_ovms.types import Json

READ_BYTES = 1 << 30
ROWS, SIZE = 1024, 4096
"""Rows of the product, and the width of the square matrix of weights."""
LARGE = 1 << 16
"""Numbers of the smallest constant that counts as weights."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of weights, and of the cache for each token before it, that a generated token reads, and the multiply-adds
    for a token of a prompt."""

    bytes: int
    context_bytes: int
    multiply_adds: int


def best(work: Callable[[], object], times: int = 5) -> float:
    """The seconds that work takes, the least of so many times."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def read_bytes_per_s(threads: int = 0) -> float:
    """Of a large array by as many threads as there are cores."""
    threads = threads or os.cpu_count() or 1
    parts = np.split(np.ones(READ_BYTES // 8, np.int64), threads)
    with ThreadPoolExecutor(threads) as pool:
        return READ_BYTES / best(lambda: list(pool.map(np.max, parts)))


def int8_multiply_adds_per_s() -> float:
    """Of a product with weights in int8, by openvino as networks have it."""
    rows = ops.parameter([ROWS, SIZE], np.float32)
    weights = ops.convert(ops.constant(np.ones((SIZE, SIZE), np.int8)), "f16")
    scaled = ops.multiply(weights, ops.constant(np.ones((SIZE, 1), np.float16)))
    model = ov.Model([ops.matmul(rows, ops.convert(scaled, "f32"), False, True).output(0)], [rows], "limit")
    request = ov.Core().compile_model(model, "CPU", {"PERFORMANCE_HINT": "LATENCY"}).create_infer_request()
    data = np.random.default_rng(1).standard_normal((ROWS, SIZE), np.float32)
    return ROWS * SIZE * SIZE / best(lambda: request.infer([data]))


def measured() -> tuple[float, float]:
    """Bytes read and multiply-adds, each a second. Measured before and after a race, as other processes disturb it."""
    return read_bytes_per_s(), int8_multiply_adds_per_s()


def cost(path: Path, config: Json) -> Cost:
    """Of a GGUF file, or of the network in a folder, with a cache in 8 bits. config: the fields of its config.json."""
    vocabulary = model_config.vocab_size(config)
    if path.is_dir():
        nodes = ov.Core().read_model(path / "openvino_model.xml").get_ops()
        constants = [node for node in nodes if node.get_type_name() == "Constant" and np.prod(node.shape) >= LARGE]
        sizes = [(list(node.shape), node.get_byte_size()) for node in constants]
    else:
        import gguf

        sizes = [(list(tensor.shape), int(tensor.n_bytes)) for tensor in gguf.GGUFReader(path).tensors]
    ends = [size for shape, size in sizes if vocabulary in shape]
    layers = [(shape, size) for shape, size in sizes if vocabulary not in shape and len(shape) > 1]
    products = sum(int(np.prod(shape)) for shape, _ in layers)
    cached = model_config.kv_bytes_per_token(config, "u8", "u8")
    return Cost(sum(size for _, size in layers) + max(ends), cached, products)
