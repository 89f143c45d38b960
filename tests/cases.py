"""For tests with many cases, of which a few are enough during development."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few_fast(cases: Iterable[Any], fast: int = 4) -> list[Any]:
    """Returns the cases. All except a few, which are spread evenly, are marked as slow."""
    every = list(cases)
    step = -(-len(every) // fast)
    return [
        pytest.param(*(case if type(case) is tuple else (case,)), marks=[pytest.mark.slow] * (place % step > 0))
        for place, case in enumerate(every)
    ]
