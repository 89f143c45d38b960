"""The interface of a model's engine, which consists of one process or of several replicas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ...errors import Unavailable
from ...types.engine import EngineRequest, EngineStats, ModelInfo, Vocabulary
from .. import protocol
from .replies import Close, L, OnPartial, ReplyStream, Send


class ModelEngine(Protocol):
    """The engine of one model. Its processes are restarted if they die."""

    on_restart: Callable[[], Awaitable[None]]
    """Awaited after a restart, before the new engine process gets requests; it may raise StartError."""

    @property
    def state(self) -> str:
        """ "loading", "ready", "restarting", "failed" (several restarts did not succeed; they go on) or "stopped"."""

    @property
    def restarts(self) -> int:
        """The number of processes that were started to replace one that died."""

    @property
    def processes(self) -> int:
        """The number of processes that compute in parallel while the engine is ready."""

    @property
    def pids(self) -> list[int]:
        """The ids of the living processes."""

    @property
    def info(self) -> ModelInfo:
        """The properties of the loaded model; available after start() has returned."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the loaded model; available after start() has returned."""

    async def start(self) -> ModelInfo:
        """Starts the engine once, and waits until the model is loaded. Raises StartError if it cannot be."""

    async def stop(self) -> None:
        """Stops the engine, and fails all requests in flight. Idempotent."""

    async def submit(self, request: EngineRequest) -> ReplyStream:
        """Starts a generation and waits until the engine has accepted it. The caller must close the stream.

        If the waiting task is cancelled, the generation is cancelled, too. Raises RequestTimeout if the engine does not
        accept the request in time, and RequestError if it refuses it or is not available.
        """

    def open_lasting(self, make: Callable[[int, Send, Close], L]) -> L:
        """Sends a new request that survives a restart of the engine, and returns its reply. Raises Unavailable.

        `make` makes the reply from a new id, a function that sends a record (or nothing while the engine is loading),
        and one that ends the request with this id.
        """

    async def encode(self, texts: list[str], add_special_tokens: bool, client: str = "") -> list[list[int]]:
        """Tokenizes texts.

        Args:
            texts: The texts.
            add_special_tokens: Whether the tokenizer adds special tokens to each of them.
            client: The name of the client that sends them. Clients take turns.

        Returns:
            The token ids of each text.

        Raises:
            RequestError: The engine refuses the texts, or is not available.
        """

    async def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Returns the text of token ids from the model's own detokenizer. Raises RequestError."""

    async def stats(self) -> EngineStats:
        """Returns the engine's statistics, taken between two steps. Raises Unavailable."""

    async def call(self, make: Callable[[int], protocol.Record], on_partial: OnPartial = None) -> Any:
        """Sends the record that `make` returns for a new id, and returns the reply. Raises RequestError.

        `on_partial` is called with each partial record before the reply.
        """

    async def call_each(self, make: Callable[[int], protocol.Record]) -> list[Any]:
        """Sends a record to each ready process, one after the other; returns the replies. Raises RequestError.

        `make` returns the record for a new id.
        """

    def only(self, process: int) -> AbstractContextManager[None]:
        """Returns a context manager that directs the current task's requests to one process, counted from 0."""

    def unavailable(self) -> Unavailable:
        """Returns the error for a request while the engine is not ready, with the estimated time until it is."""
