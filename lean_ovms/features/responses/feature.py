"""The manifest of responses and conversations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ...config.options import Options, option
from ...errors import WrongOptions
from ...manifest import BASES, EVERYWHERE, Feature, Route, StartRow

_responses = partial(option, group="responses")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ResponseOptions(Options):
    """The place where responses are stored, and the most that are stored."""

    response_store: str = _responses(
        "",
        "where responses are stored: a SQLite file, or postgresql://... to share them between machines; in memory if "
        "empty",
        private=True,
    )
    response_store_strict: bool = _responses(
        False, "refuse to start with a damaged store file, instead of renaming it and creating a new one"
    )
    response_store_max_age_s: float = _responses(
        2592000.0,
        "delete a response, or an unused conversation, after this many seconds (the default is 30 days); 0 for never",
        low=0,
    )
    response_store_max_count: int = _responses(
        10000, "maximum number of stored responses, and as many conversations; the oldest are deleted", low=1
    )
    response_store_max_mb: int = _responses(
        256, "maximum size of the store in MB; the oldest entries are deleted", low=1, high=1 << 20
    )
    reasoning_key_file: str = _responses(
        "",
        "file with the keys of encrypted reasoning (reasoning.encrypted_content), one per line; the first encrypts, "
        "all decrypt (lean_ovms/features/responses/README.md); if empty, a random key until the server stops",
    )

    def check(self, config: Any) -> None:
        """Raises WrongOptions if the directory for the store's file does not exist."""
        store = self.response_store
        if store and "://" not in store and not Path(store).absolute().parent.is_dir():
            raise WrongOptions(
                f"--response_store {store}: the directory {Path(store).absolute().parent} does not exist"
            )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ResponseSocketOptions(Options):
    """The most WebSockets of responses that are open at once."""

    beside: ClassVar[str] = "websocket"

    max_response_websockets: int = option(
        64, "maximum number of open WebSockets of /responses; more are rejected with 429", group="realtime", low=1
    )


FEATURE = Feature(
    name="responses",
    summary="serves OpenAI's Responses API: stored and background responses, conversations, a WebSocket",
    title="OpenAI: responses and conversations",
    reference="https://platform.openai.com/docs/api-reference/responses",
    formerly=("response_sockets",),
    needs=("chat",),
    packages=("cryptography", "psycopg"),
    options=ResponseOptions,
    libraries=(ResponseSocketOptions,),
    start=StartRow(prepare="api.create:prepare", options=("response_store", "reasoning_key_file")),
    harmless=("access_programs", "background_options", "image", "prompt_cache_options", "client_metadata"),
    routes=(
        Route("GET", "/responses", "api.sockets:handle", EVERYWHERE, beside="websocket"),
        Route("POST", "/responses/compact", "api.compact:handle", EVERYWHERE),
        Route("POST", "/conversations", "api.conversations:handle_create", BASES),
        Route("GET", "/conversations/{id}", "api.conversations:handle_get", BASES),
        Route("POST", "/conversations/{id}", "api.conversations:handle_update", BASES),
        Route("DELETE", "/conversations/{id}", "api.conversations:handle_delete", BASES),
        Route("GET", "/conversations/{id}/items", "api.conversations:handle_items", BASES),
        Route("POST", "/conversations/{id}/items", "api.conversations:handle_add_items", BASES),
        Route("GET", "/conversations/{id}/items/{id}", "api.conversations:handle_item", BASES),
        Route("DELETE", "/conversations/{id}/items/{id}", "api.conversations:handle_delete_item", BASES),
        Route("POST", "/responses", "api.create:handle_create", EVERYWHERE, serves="chat"),
        Route("POST", "/responses/input_tokens", "api.create:handle_input_tokens", EVERYWHERE),
        Route("GET", "/responses/{id}", "api.stored:handle_get", BASES),
        Route("DELETE", "/responses/{id}", "api.stored:handle_delete", BASES),
        Route("POST", "/responses/{id}/cancel", "api.stored:handle_cancel", BASES),
        Route("GET", "/responses/{id}/input_items", "api.stored:handle_input_items", BASES),
    ),
)
