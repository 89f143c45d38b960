"""The option of replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...config.options import Options, option
from ...errors import StartError

ALONE = {
    "slot_save_path": "a slot is what one engine has cached",
    "kv_events_config": "the events are those of one engine",
}
"""Options that do not go together with several replicas, and why."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ReplicaOptions(Options):
    """How many processes compute a model."""

    engine_replicas: int = option(
        0,
        "engine processes that compute the model, each with its share of the processors and a KV cache of its own; a "
        "request goes to the one that knows most of its prompt, unless others have much less to do. 0: one",
        group="engine",
        low=0,
        high=64,
    )

    def check(self, config: Any) -> None:
        """Refuses what only one engine can do. Raises StartError."""
        if self.engine_replicas > 1:
            for name, why in ALONE.items():
                if config.given(name):
                    raise StartError(f"--engine_replicas and --{name} do not go together: {why}")
