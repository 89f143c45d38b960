"""Networks with layers that keep states: each kind of layer has its own way to compute by chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import delta_chunks, state_space_chunks


def compute_in_chunks(model: Any, precision: Callable[[], Any]) -> None:
    """Adds the computation of prompts by chunks to a network with states: an `engine.paged.network.HybridEdit`."""
    delta_chunks.compute_in_chunks(model, precision)
    state_space_chunks.compute_in_chunks(model, precision)
