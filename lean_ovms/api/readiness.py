"""Readiness of the server, which vLLM's and KServe's health endpoints report alike."""

from __future__ import annotations

from ..errors import Unavailable
from .services import Services


def require_ready(services: Services) -> None:
    """Raises Unavailable while the server stops or sleeps, no model is ready, or a model loads at the start.

    A model that failed to load does not take the others out of service, and one that its requests load is ready.
    """
    if services.draining:
        raise Unavailable("Server is shutting down", code="draining")
    waiting = {m.name: m.state for m in services.registry.models.values() if not m.ready}
    unready = len(waiting) == len(services.registry.models) or any(state != "failed" for state in waiting.values())
    if waiting and unready:
        raise Unavailable("Server is not ready: " + ", ".join(f"{name} is {state}" for name, state in waiting.items()))
