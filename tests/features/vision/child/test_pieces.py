"""Sizes of images, grids of tiles and places between places, with the results of transformers and torch."""

import numpy as np
import pytest

from lean_ovms.errors import BadRequest
from lean_ovms.features.vision.child import pieces, qwen2_vl
from lean_ovms.features.vision.child.internvl import closest_grid, grids
from lean_ovms.features.vision.child.qwen2_vl import Qwen25Vl


@pytest.mark.parametrize(
    ("size", "scaled", "grid"),
    [
        ((50, 60), (256, 288), (3, 4)),
        ((2, 200), (32, 2560), (1, 12)),
        ((200, 2), (2560, 32), (12, 1)),
        ((3000, 3000), (512, 512), (3, 3)),
        ((272, 400), (256, 384), (2, 3)),
        ((5000, 60), (4672, 32), (12, 1)),
        ((16, 16), (256, 256), (1, 1)),
    ],
)
def test_sizes_and_grids_are_those_of_transformers(size, scaled, grid):
    assert pieces.fitted(size, 32, (64 * 32**2, 256 * 32**2)) == scaled
    assert closest_grid(size, grids(1, 12), 448) == grid


@pytest.mark.parametrize(
    ("known", "shares"),
    [
        (5, [[0.5714, 0.4286, 0, 0, 0], [0, 0.2222, 0.5556, 0.2222, 0], [0, 0, 0, 0.4286, 0.5714]]),
        (2, [[1, 0], [0.5, 0.5], [0, 1]]),
        (3, np.eye(3)),
    ],
)
def test_shares_between_points_are_those_of_torch(known, shares):
    assert pieces.linear(3, known) == pytest.approx(np.array(shares), abs=1e-4)


def test_bicubic_shares_between_points_are_those_of_torch():
    assert pieces.cubic(3, 5) == pytest.approx(
        np.array([[0.6852, 0.3704, -0.0556, 0, 0], [0, 0, 1, 0, 0], [0, 0, -0.0556, 0.3704, 0.6852]]), abs=1e-4
    )
    assert pieces.cubic(3, 2) == pytest.approx(np.array([[1.0868, -0.0868], [0.5, 0.5], [-0.0868, 1.0868]]), abs=1e-4)


@pytest.mark.parametrize("grid", [(2, 2), (2, 40), (10, 6), (34, 18)])
def test_the_mask_of_windows_is_0_inside_each_and_is_not_made_if_it_takes_too_much_memory(monkeypatch, grid):
    family = Qwen25Vl.__new__(Qwen25Vl)
    family._merge, family._window = 2, 4
    found = family._masks(grid)
    order, windows = family._by_windows((grid[0] // 2, grid[1] // 2))
    of_patches = np.repeat(windows, 4)
    inside = of_patches[:, None] == of_patches
    assert np.array_equal(found["window_attention_mask"][0], np.where(inside, 0, -np.inf))
    assert np.array_equal(found["window_index"], order)
    monkeypatch.setattr(qwen2_vl, "free_memory_bytes", lambda: 8 * len(inside) ** 2 - 1)
    with pytest.raises(BadRequest, match="more than this server can spare; send a smaller image"):
        family._masks(grid)
