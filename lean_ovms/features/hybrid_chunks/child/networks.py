"""Networks with layers that keep states: each kind of layer has its own way to compute by chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....engine.paged.network import has_states
from . import delta_chunks, state_space_chunks


def compute_in_chunks(model: Any, precision: Callable[[], Any]) -> None:
    """Adds the computation of prompts by chunks to a network with states: an `engine.paged.network.HybridEdit`.

    The results with states come first: openvino computes results in their order, and keeps until then what they are
    made of, which of all layers together is several times the states.
    """
    delta_chunks.compute_in_chunks(model, precision)
    state_space_chunks.compute_in_chunks(model, precision)
    others = [result for result in model.get_results() if not has_states(result.output(0).get_names())]
    for result in others:
        model.remove_result(result)
    model.add_results(others)
