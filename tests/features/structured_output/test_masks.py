"""Masks are applied to logits alike, however many tokens they allow."""

from __future__ import annotations

import numpy as np
import pytest

from lean_ovms.features.structured_output.child.vocabulary import forbid


@pytest.mark.parametrize("width", [1000, 1024, 1031])
@pytest.mark.parametrize("share", [0, 0.001, 0.1, 0.124, 0.126, 0.5, 0.874, 0.876, 0.99, 1])
def test_a_token_is_forbidden_if_its_bit_is_0(width: int, share: float) -> None:
    rng = np.random.default_rng(0)
    allowed = np.zeros(1088, np.bool_)
    allowed[rng.permutation(1088)[: round(share * 1088)]] = True
    mask = np.packbits(allowed, bitorder="little").view(np.uint32)
    logits = rng.standard_normal(width).astype(np.float32)
    row = logits.copy()
    forbid(row, mask, [5, 6], np.array([6, 7]))
    allowed[7] = False
    allowed[[5, 6]] = True
    assert np.array_equal(row, np.where(allowed[:width], logits, -np.inf))
