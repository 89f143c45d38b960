"""The markers of tests mean what setup.cfg says."""

from __future__ import annotations

import pytest


@pytest.mark.model
def test_a_test_with_a_model_is_slow(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("slow")


def test_another_test_is_not(request: pytest.FixtureRequest) -> None:
    assert not request.node.get_closest_marker("slow")
