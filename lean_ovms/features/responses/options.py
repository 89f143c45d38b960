"""The options of responses and their store."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...config.options import Options, option
from ...errors import WrongOptions

_responses = partial(option, group="responses")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ResponseOptions(Options):
    """Where responses are stored, and how many there may be."""

    # --- responses
    response_store: str = _responses(
        "",
        "where responses are stored: a SQLite file, or postgresql://... if several machines share them; empty: in "
        "memory",
        private=True,
    )
    response_store_strict: bool = _responses(
        False, "do not start with a damaged store file; false: it is renamed, and a new one begins"
    )
    response_store_max_age_s: float = _responses(
        2592000.0,
        "delete a response, or a conversation that is not used, after this many seconds (the default is 30 days); 0: "
        "never",
        low=0,
    )
    response_store_max_count: int = _responses(
        10000, "most stored responses, and as many conversations; the oldest are deleted", low=1
    )
    response_store_max_mb: int = _responses(
        256, "largest size of the store in MB; the oldest entries are deleted", low=1, high=1 << 20
    )
    reasoning_key_file: str = _responses(
        "",
        "file with the keys of sealed reasoning (reasoning.encrypted_content), a line each; the first seals, all open"
        " (lean_ovms/features/responses/README.md); empty: a random key, until the server stops",
    )

    # --- realtime
    max_response_websockets: int = option(64, "most open WebSockets of /responses; more: 429", group="realtime", low=1)

    def check(self, config: Any) -> None:
        """Raises WrongOptions for a store without a directory."""
        store = self.response_store
        if store and "://" not in store and not Path(store).absolute().parent.is_dir():
            raise WrongOptions(f"--response_store {store}: there is no directory {Path(store).absolute().parent}")
