"""all-mpnet-base-v2, whose attention depends on distances: its vectors are torch's, also of a text of 384 tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.real.conftest import HINT, skip_without
from tests.real.test_minilm import DATA, agreement, computed, known, texts

VECTORS = DATA.with_name("mpnet.json")
"""The vectors of MiniLM's texts, and of the beginning of a long one, from transformers in torch, as those of MiniLM."""
LONG = (DATA.parent / "english.txt").read_text("utf-8")[:6000]


@pytest.mark.parametrize(("precision", "nearest"), [("f32", 0.9999), ("bf16", 0.999)])
def test_vectors_are_torchs(mpnet_ir: Path, precision: str, nearest: float) -> None:
    skip_without(precision)
    inputs = [*texts(), LONG]
    hint = json.dumps({HINT: precision})
    found, _ = computed(mpnet_ir, inputs, truncate=384, pooling="MEAN", plugin_config=hint)
    expected = known(VECTORS, len(inputs))
    assert min(agreement(found, expected)) > nearest
    near, right = (rows @ rows.T - 2 * np.eye(len(rows)) for rows in (found, expected))
    best = near.argmax(axis=1)
    assert np.all(right.max(axis=1) - right[np.arange(len(best)), best] < 0.005)
