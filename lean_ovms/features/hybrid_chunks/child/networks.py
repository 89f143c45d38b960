"""Adds the computation in chunks to networks with states, for each kind of layer in its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....engine.paged.network import has_states
from . import delta_chunks, state_space_chunks


def compute_in_chunks(model: Any, precision: Callable[[], Any]) -> None:
    """Adds the computation of prompts in chunks to a network with states.

    The results with states are put first. OpenVINO computes results in their order, and keeps the inputs of each until
    then, which for all layers together are several times as large as the states.
    """
    delta_chunks.compute_in_chunks(model, precision)
    state_space_chunks.compute_in_chunks(model, precision)
    others = [result for result in model.get_results() if not has_states(result.output(0).get_names())]
    for result in others:
        model.remove_result(result)
    model.add_results(others)
