"""Threads of the engine process: for a queue of items, for a single piece of work, and for tokenizing long texts."""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, TypeVar

from ...errors import EngineFailure, RequestError, TooManyRequests, last_line
from ...util.round_robin import RoundRobin
from ..protocol import Encode, Submit
from .backend import Backend, LongTextEncoder
from .request_validator import BadWords, RequestValidator, kept

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


class WorkerThread(Generic[T, R]):
    """A queue of items, and a thread that works on one item at a time.

    Everything except the work itself runs in the thread of the engine's loop, and never blocks. `busy` says whether the
    thread has an item.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[T], R],
        wake: Callable[[], None],
        failure: str,
        *,
        wanted: Callable[[T], bool] = lambda item: True,
        idle_s: float | None = None,
        on_idle: Callable[[], object] = lambda: None,
    ) -> None:
        """Creates an empty queue. The first item starts the thread.

        Args:
            name: The name of the thread.
            work: Returns the result of an item; called in the thread.
            wake: Wakes up the engine's loop; called from the thread.
            failure: The message for the client if `work` raises something other than a RequestError; "{}" stands for
                the exception's message.
            wanted: Returns whether an item is still needed; called before the work on it begins.
            idle_s: The seconds without an item after which on_idle is called; None for never.
            on_idle: Called in the thread after idle_s seconds without an item.
        """
        self.busy = False
        self._name, self._work, self._wake, self._failure = name, work, wake, failure
        self._wanted, self._idle_s, self._on_idle = wanted, idle_s, on_idle
        self._turns: RoundRobin[T] = RoundRobin()
        self._begun: SimpleQueue[T] = SimpleQueue()
        self._done: SimpleQueue[tuple[T, R | RequestError]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def queued(self, client: str) -> int:
        """Returns the number of a client's items that are not begun."""
        return self._turns.of(client)

    def add(self, client: str, item: T) -> None:
        """Queues an item; `start` passes it to the thread."""
        self._turns.add(client, item)

    def start(self) -> None:
        """Passes the next item that is still needed to the thread, if the thread is free."""
        while not self.busy and (item := self._turns.next()) is not None:
            if self._wanted(item):
                self.busy = True
                self._begun.put(item)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()

    def poll(self) -> Iterator[tuple[T, R | RequestError]]:
        """Yields the finished items, each with the result or the exception of the work."""
        while not self._done.empty():
            self.busy = False
            yield self._done.get()

    def _run(self) -> None:
        while True:
            try:
                item = self._begun.get(timeout=self._idle_s)
            except Empty:
                self._on_idle()
                item = self._begun.get()
            result: R | RequestError
            try:
                result = self._work(item)
            except RequestError as error:
                result = error
            except Exception as error:  # whatever it is, the waiting request must get an error
                log.exception("%s failed", self._name)
                result = EngineFailure(self._failure.format(last_line(error)))
            self._done.put((item, result))
            self._wake()


def in_thread(name: str, work: Callable[[], T]) -> Future[T]:
    """Runs work, such as compiling a network, in a new thread with the caller's context; returns its future."""
    pool = ThreadPoolExecutor(1, name)
    future = pool.submit(copy_context().run, work)
    pool.shutdown(wait=False)
    return future


# --- long texts

MOST, MOST_OF_CLIENT = 64, 32
"""The most commands that may wait for tokenization, in total and of one client; others are refused (429)."""
RETRY_AFTER_S = 2
FEW_WORDS = 8
"""The bad words that are tokenized in the step loop, in two calls of 0.6 ms each; 256 took 2.5 s (2026-11)."""
MANY_CHARACTERS = 1 << 16
"""The total number of characters up to which the texts of an Encode command are tokenized in the step loop."""
PIECE = 65536
"""The number of ids that are converted in one call, which takes 1 ms."""

Command = Submit | Encode


class Ids(NamedTuple):
    """The token ids of a command's texts."""

    prompt: list[int] | None = None
    """The token ids of a Submit's prompt; None if it is short, and tokenized elsewhere."""
    texts: Sequence[array[int]] = ()
    """The token ids of each text of an Encode command."""
    bad_words: BadWords | None = None
    """The token ids of a Submit's bad words; None if they are few, and tokenized elsewhere."""


Work = Callable[[], Ids]


def as_list(ids: array[int]) -> list[int]:
    """Converts an array of ids to a list, piece by piece, so that other threads can run."""
    whole: list[int] = []
    for start in range(0, len(ids), PIECE):
        whole += ids[start : start + PIECE].tolist()
    return whole


@dataclass(slots=True)
class _Waiting:
    """A command whose texts are not tokenized yet."""

    command: Command
    """The command."""
    work: Work
    """The function that tokenizes the texts."""


class TokenizeQueue:
    """A queue of commands with long texts, which are tokenized in a thread while steps are computed.

    A tokenizer reads a text in one call: 65,536 characters in 20 to 100 ms, a million in 0.4 to 0.9 s (2026-11), during
    which no other request would get a token. One text is tokenized at a time, and clients take turns. Everything except
    the tokenization itself runs in the thread of the loop, and never blocks.
    """

    def __init__(self, backend: Backend, validator: RequestValidator, wake: Callable[[], None]) -> None:
        """Creates an empty queue.

        Args:
            backend: Tokenizes the texts.
            validator: Checks the requests.
            wake: Wakes up the engine's loop; called from the thread.
        """
        self._backend, self._validator = backend, validator
        self._waiting: dict[int, _Waiting] = {}
        self._thread: WorkerThread[_Waiting, Ids] = WorkerThread(
            "tokenize",
            lambda item: item.work(),
            wake,
            "The engine could not tokenize this text.",
            wanted=lambda item: item.command.id in self._waiting,
        )

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def waiting_of(self, client: str) -> int:
        return sum(item.command.client == client for item in self._waiting.values())

    def work(self, command: Command) -> Work | None:
        """Returns the function that the thread should call for a command; None if its texts are short."""
        encoder = self._backend.long_text_encoder
        if encoder is None:
            return None
        if isinstance(command, Encode):
            if sum(map(len, command.texts)) <= MANY_CHARACTERS and not any(map(encoder.is_long, command.texts)):
                return None
            return lambda: Ids(None, [encoder.encode(text, command.add_special_tokens) for text in command.texts])
        text, words = command.prompt, command.sampling.get("bad_words", ())
        placeholders = self._backend.image_placeholders
        in_steps = placeholders is not None and (command.images or not placeholders.takes_ids)
        if in_steps or not isinstance(text, str) or not encoder.is_long(text):
            text = ""
        if len(words) <= FEW_WORDS:
            words = ()
        return partial(self._of_submit, command, text, words, encoder) if text or words else None

    def _of_submit(self, submit: Submit, text: str, words: Sequence[str], encoder: LongTextEncoder) -> Ids:
        bad_words = self._validator.bad_words(words, encoder.encode) if words else None
        return Ids(self._prompt(submit, text, encoder) if text else None, (), bad_words)

    def _prompt(self, submit: Submit, text: str, encoder: LongTextEncoder) -> list[int]:
        ids, context = self._validator.encode(text, submit, encoder.encode), self._backend.info.context_length
        if submit.truncate is None:
            self._validator.check_length(len(ids))
        elif len(ids) > context:
            ids = kept(ids, max(context, submit.truncate), submit.truncation_side)
        return as_list(ids)

    def add(self, command: Command, work: Work) -> None:
        """Queues a command, which `poll` returns with the result or error of `work`. Raises TooManyRequests."""
        if len(self._waiting) >= MOST or self.waiting_of(command.client) >= MOST_OF_CLIENT:
            text = "too many long texts are waiting to be tokenized; please try again later"
            raise TooManyRequests(text, retry_after_s=RETRY_AFTER_S)
        item = self._waiting[command.id] = _Waiting(command, work)
        self._thread.add(command.client or str(command.id), item)
        self._thread.start()

    def cancel(self, number: int) -> None:
        """Drops a command that its client cancelled. Unknown ids are ignored."""
        self._waiting.pop(number, None)

    def poll(self) -> list[tuple[Command, Ids | RequestError]]:
        """Returns the commands that no longer wait, each with the token ids of its texts, or with its error."""
        outcomes: list[tuple[Command, Ids | RequestError]] = []
        for item, result in self._thread.poll():
            if self._waiting.pop(item.command.id, None) is not None:
                self._learn(item.command, result)
                outcomes.append((item.command, result))
        self._thread.start()
        return outcomes

    def _learn(self, command: Command, result: Ids | RequestError) -> None:
        encoder = self._backend.long_text_encoder
        if encoder is None or isinstance(result, RequestError) or isinstance(command, Encode):
            return
        if result.prompt is not None and isinstance(command.prompt, str):
            if command.truncate is None:
                encoder.learn(command.prompt, result.prompt, command.add_special_tokens)
            command.prompt = ""  # nobody needs it
