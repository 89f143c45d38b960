"""What a network is read from, and what changes it before it is compiled."""

from __future__ import annotations

from typing import Any, Protocol


class NetworkEdit(Protocol):
    """Changes a network before it is compiled."""

    def __call__(self, core: Any, model: Any) -> None:
        """Changes an openvino.Model whose attention is paged. Raises NotPageable."""


class WeightsSource(Protocol):
    """What a network is read from."""

    def read(self, core: Any) -> Any:
        """Returns a new openvino.Model with paged attention and logits for wanted tokens. Raises NotPageable."""
