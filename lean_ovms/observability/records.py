"""What is recorded of a request while it is served; the access line and the metrics are written from it at its end.

The record is found through a context variable, so that a handler need not pass it on: it is set for the handler's task
(a task of its own, by the transport contract) and copied into the tasks that the handler starts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Protocol

from ..types import SamplingParams
from ..types.push import never


@dataclass(slots=True, kw_only=True)
class GenerationRecord:
    """One finished generation. Not changed once it is built.

    engine_id: its number in the engine's log. ttft_s: from the request to its first token, None without one.
    seconds: from the request to its end. decode_s: from the first token to the end. finish_reasons: "stop", "length",
    "abort" or "error", one for each choice. error: the code of the error, "" without one. cached_tokens: prompt tokens
    found in the prefix cache, None if that is not known. queue_s: from the request to the begin of its prefill, None
    if that is not known.
    """

    engine_id: int
    prompt_tokens: int
    completion_tokens: int
    ttft_s: float | None
    seconds: float
    decode_s: float
    finish_reasons: tuple[str, ...]
    error: str = ""
    cached_tokens: int | None = None
    queue_s: float | None = None

    @property
    def phases(self) -> dict[str, float]:
        """Seconds of each phase that is known: queue, prefill, decode, and inference, which is the last two."""
        if self.ttft_s is None:
            return {}
        if self.queue_s is None:
            return {"decode": self.decode_s}
        prefill, inference = self.ttft_s - self.queue_s, self.seconds - self.queue_s
        return {"queue": self.queue_s, "prefill": prefill, "decode": self.decode_s, "inference": inference}


class Key(Protocol):
    """The API key of a request. models: patterns of the names that it may use; (): every model. cache_scope: with
    which keys it shares cached prompts."""

    @property
    def name(self) -> str: ...

    @property
    def models(self) -> tuple[str, ...]: ...

    @property
    def cache_scope(self) -> str: ...

    def generation_finished(self, generation: GenerationRecord, model: str) -> None: ...


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request and its response. started: time.monotonic(). route: the path in the table of routes, "" if unknown.

    model: the served model that it names. stream: the client wants a stream. error: the code of the error, in the
    status or in a stream. bytes, chunks: of the body, as far as the transport read it. seconds: from the request to
    its last byte. releases: called when the response is closed: each gives back what the request has taken.
    release_body: gives back the memory of its body before that. Idempotent.
    peer: the other end of the connection, or the client that a trusted proxy names.
    client: the name of its client, as api.clients has it. number: among the requests of this process.
    quiet: its access line is of level DEBUG. key: its API key, None without a valid one. sampling: of its generations.
    traceparent, tracestate: its place in a trace (https://www.w3.org/TR/trace-context/), "" without a valid one.
    """

    request_id: str
    method: str
    path: str
    peer: str
    started: float
    route: str = ""
    model: str = ""
    stream: bool = False
    error: str = ""
    status: int = 0
    bytes: int = 0
    chunks: int = 0
    seconds: float = 0.0
    generations: list[GenerationRecord] = field(default_factory=list)
    releases: list[Callable[[], None]] = field(default_factory=list)
    release_body: Callable[[], None] = never
    client: str = ""
    quiet: bool = False
    key: Key | None = None
    sampling: SamplingParams | None = None
    traceparent: str = ""
    tracestate: str = ""
    number: int = field(default_factory=itertools.count(1).__next__)

    def add(self, generation: GenerationRecord, model: str = "") -> None:
        """Adds a finished generation, whose tokens are those of the request's API key.

        model: that has made it; one that only worked for the request's model is not in the access line.
        """
        if not model or self.model in ("", model):
            self.generations.append(generation)
        if self.key is not None:
            self.key.generation_finished(generation, model or self.model)

    @property
    def trace_id(self) -> str:
        return self.traceparent[3:35]

    @property
    def prompt_tokens(self) -> int:
        return sum(g.prompt_tokens for g in self.generations)

    @property
    def completion_tokens(self) -> int:
        return sum(g.completion_tokens for g in self.generations)

    @property
    def finish_reasons(self) -> list[str]:
        return [reason for g in self.generations for reason in g.finish_reasons]

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the request to the first token of any choice."""
        return min((g.ttft_s for g in self.generations if g.ttft_s is not None), default=None)


CLIENT_LEFT = 499
"""The status of a request whose client did not wait for the response (nginx's number; it is never sent)."""

current_record: ContextVar[RequestRecord | None] = ContextVar("current_record", default=None)
"""The record of the request that this task serves."""


def current_client() -> str:
    """Returns the client of this task's request; "" without one."""
    record = current_record.get()
    return record.client if record is not None else ""


def scoped_salt(scope: str, salt: str) -> str:
    """Returns the salt of a prompt in the prefix cache, which is that of no other scope. scope: Key.cache_scope. salt:
    the request's own; "" for none."""
    return f"{scope}\n{salt}" if scope else salt


def own_salt(salt: str) -> str:
    """Returns `scoped_salt` for the API key of this task's request."""
    record = current_record.get()
    return scoped_salt(record.key.cache_scope, salt) if record is not None and record.key is not None else salt


def may_use(model: str) -> bool:
    """Returns whether the API key of this task's request may use the model of this name; others do not exist for it."""
    record = current_record.get()
    patterns = record.key.models if record is not None and record.key is not None else ()
    return permits(patterns, model)


def permits(patterns: Sequence[str], model: str) -> bool:
    """Returns whether a key with these patterns may use the model of this name."""
    return not patterns or any(fnmatchcase(model, pattern) for pattern in patterns)


def log_quietly() -> None:
    """Have the access line of the current request at level DEBUG: it is one of many, of an open page or a probe."""
    if record := current_record.get():
        record.quiet = True
