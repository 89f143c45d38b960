"""Declares what a model asks of its engine: one process of it, or several that are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ...errors import Unavailable
from ...types import Image, SamplingParams
from ...types.engine import EngineStats, ModelInfo, Vocabulary
from .. import protocol
from .replies import Close, L, OnPartial, ReplyStream, Send


class ModelEngine(Protocol):
    """The engine of one model, which is restarted where it dies."""

    @property
    def state(self) -> str:
        """The state: "loading", "ready", "restarting", "failed" (restarts do not get ready; they are still tried) or
        "stopped"."""

    @property
    def restarts(self) -> int:
        """The number of processes that were started in place of one that died."""

    @property
    def processes(self) -> int:
        """The number of processes that compute at once while it is ready."""

    @property
    def pids(self) -> list[int]:
        """The process ids of those that live."""

    @property
    def info(self) -> ModelInfo:
        """The properties of the model that was loaded last; they exist once start() has returned."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of that model."""

    async def start(self) -> ModelInfo:
        """Starts it and waits until the model is loaded. Raises StartError: never served. Call it once."""

    async def stop(self) -> None:
        """Ends it, and everything in flight with an error. Idempotent."""

    async def submit(
        self,
        prompt: str | list[int],
        *,
        add_special_tokens: bool,
        truncate: int | None,
        truncation_side: str = "left",
        want_tokens: bool,
        sampling: SamplingParams,
        constraint: str = "",
        images: Sequence[Image] = (),
        audio: Sequence[bytes] = (),
        timeout_s: float = 0.0,
        client: str = "",
        group: int = 0,
        priority: int = 0,
        adapter: str = "",
    ) -> ReplyStream:
        """Starts a generation and waits until the engine has accepted it; the caller closes the stream.

        When the waiting task is cancelled, the generation is cancelled too.

        Args:
            prompt: The text, which the engine tokenizes, or token ids.
            add_special_tokens: Whether the tokenizer adds special tokens to the text.
            truncate: The number of prompt tokens to keep; None: all.
            truncation_side: The end from which the other tokens are left out, "left" or "right".
            want_tokens: Whether the stream gets the ids of the prompt.
            sampling: The parameters of the request.
            constraint: A structural tag, as JSON text, that the answer must match; "" for none.
            images: The images of the tags in the prompt.
            audio: The samples of the audio tags in the prompt.
            timeout_s: The most seconds until the engine accepts it; 0: no limit.
            client: Who sends it; clients share the time of the engine.
            group: The number of its HTTP request, of which a client may have several; 0: it has one of its own.
            priority: The lower one starts first.
            adapter: The LoRA adapters in the notation of the model's set of adapters; "" for none.

        Raises:
            RequestTimeout: The engine has not accepted it in time.
            RequestError: The engine refuses it, or is not available.
        """

    def open_lasting(self, make: Callable[[int, Send, Close], L]) -> L:
        """Sends a new request that goes on after a restart of the engine, and returns its reply.

        Args:
            make: Makes the reply from a new id, a function that sends a record (nothing to an engine that still loads),
                and a function that ends the request with this id.

        Raises:
            Unavailable: The engine does not run.
        """

    async def encode(self, texts: list[str], add_special_tokens: bool, client: str = "") -> list[list[int]]:
        """Tokenizes texts.

        Args:
            texts: The texts.
            add_special_tokens: Whether the tokenizer adds special tokens to each of them.
            client: Who sends them; clients take turns.

        Returns:
            The token ids of each text.

        Raises:
            RequestError: The engine refuses the texts, or is not available.
        """

    async def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Detokenizes with the model's own detokenizer. Raises RequestError."""

    async def stats(self) -> EngineStats:
        """Returns the engine's own counts, taken between two steps. Raises Unavailable."""

    async def call(self, make: Callable[[int], protocol.Record], on_partial: OnPartial = None) -> Any:
        """Returns the one reply to what `make` returns for a new id, as ReplyRouter.call. Raises RequestError."""

    async def call_each(self, make: Callable[[int], protocol.Record]) -> list[Any]:
        """Returns the replies of all processes that are ready, one after the other, to what `make` returns for a new
        id of each. Raises RequestError."""

    def only(self, process: int) -> AbstractContextManager[None]:
        """Returns a context in which what this task asks goes to one of the processes, by its number from 0."""

    def unavailable(self) -> Unavailable:
        """Returns the error for a request while the engine is not ready, with the time when it should be."""
