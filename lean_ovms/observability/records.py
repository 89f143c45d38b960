"""Records of requests, filled while a request is served; the access line and the metrics are made of them at its end.

A context variable holds the record of the current request, so that handlers need not pass it on. It is set for the
handler's task (transports run each handler in a separate task), and copied to the tasks that the handler starts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Protocol

from ..types import SamplingParams
from ..types.push import never


@dataclass(slots=True, kw_only=True)
class GenerationRecord:
    """The record of a finished generation. It is not changed once it is built."""

    engine_id: int
    """The id of the request in the engine."""
    prompt_tokens: int
    """The tokens of the prompt."""
    completion_tokens: int
    """The tokens of all choices."""
    ttft_s: float | None
    """The seconds from the request to its first token; None if there was none."""
    seconds: float
    """The seconds from the request to its end."""
    decode_s: float
    """The seconds from the first token to the end."""
    finish_reasons: tuple[str, ...]
    """The finish reason of each choice: "stop", "length", "abort" or "error"."""
    error: str = ""
    """The code of the error; empty for none."""
    cached_tokens: int | None = None
    """The number of prompt tokens found in the prefix cache; None if unknown."""
    queue_s: float | None = None
    """The seconds from the request to the beginning of its prefill; None if unknown."""

    @property
    def phases(self) -> dict[str, float]:
        """The seconds of the known phases: queue, prefill, decode, and inference (prefill and decode together)."""
        if self.ttft_s is None:
            return {}
        if self.queue_s is None:
            return {"decode": self.decode_s}
        prefill, inference = self.ttft_s - self.queue_s, self.seconds - self.queue_s
        return {"queue": self.queue_s, "prefill": prefill, "decode": self.decode_s, "inference": inference}


class Key(Protocol):
    """The API key of a request."""

    @property
    def name(self) -> str:
        """The name of the key."""

    @property
    def models(self) -> tuple[str, ...]:
        """Patterns of the names of models that the key may use; empty for every model."""

    @property
    def cache_scope(self) -> str:
        """The scope of the prefix cache. Keys with the same scope share cached prompts."""

    def generation_finished(self, generation: GenerationRecord, model: str) -> None: ...


@dataclass(slots=True, eq=False)
class RequestRecord:
    """The record of a request and its response."""

    request_id: str
    """The id of the request, for its client and the log."""
    method: str
    """The HTTP method."""
    path: str
    """The path."""
    peer: str
    """The other end of the connection, or the client that a trusted proxy names."""
    started: float
    """The time.monotonic() at which the request arrived."""
    route: str = ""
    """The path of the matching route; empty for none."""
    model: str = ""
    """The name of the served model that the request uses."""
    stream: bool = False
    """Whether the client requests a stream."""
    error: str = ""
    """The code of the error, in the response or in a stream; empty for none."""
    status: int = 0
    """The HTTP status."""
    bytes: int = 0
    """The size of the response body in bytes, as far as it was sent."""
    chunks: int = 0
    """The number of pieces of the response body, as far as it was sent."""
    seconds: float = 0.0
    """The seconds from the request to its last byte."""
    generations: list[GenerationRecord] = field(default_factory=list)
    """The finished generations."""
    releases: list[Callable[[], None]] = field(default_factory=list)
    """Functions called when the response is closed; each releases something that the request holds."""
    release_body: Callable[[], None] = never
    """Releases the memory of the request's body before the response is closed. Idempotent."""
    client: str = ""
    """The name of the client, as api.middleware.Clients determines it."""
    quiet: bool = False
    """Whether the access line has level DEBUG."""
    key: Key | None = None
    """The API key; None if the request has no valid one."""
    sampling: SamplingParams | None = None
    """The sampling parameters of the generations."""
    traceparent: str = ""
    """The traceparent header for this request (https://www.w3.org/TR/trace-context/); empty without a valid trace."""
    tracestate: str = ""
    """The tracestate header of the trace."""
    number: int = field(default_factory=itertools.count(1).__next__)
    """The sequential number of the request in this process."""

    def add(self, generation: GenerationRecord, model: str = "") -> None:
        """Adds a finished generation, and counts its tokens for the request's API key.

        If a model other than the request's made it, such as a helper, it is not in the access line.
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
        """The seconds from the request to the first token of any choice."""
        return min((g.ttft_s for g in self.generations if g.ttft_s is not None), default=None)


class TokenTimer(Protocol):
    """Measures the times between the tokens of one generation."""

    def observe(self, count: int) -> None:
        """Records that `count` tokens of a choice arrived now."""


Sample = tuple[str, tuple[str, ...], float]
"""A value of a metric: the metric's name, the label values, and the value."""


class Metrics:
    """Counts events for metrics. The base class counts nothing, for a server without metrics."""

    enabled = False
    """Whether anything is counted."""

    def request_finished(self, record: RequestRecord) -> None:
        """Counts a request whose response has been closed."""

    def token_timer(self) -> TokenTimer | None:
        """Returns a timer for a new generation; None if nothing needs to be measured."""
        return None

    def generation_finished(self, model: str, record: GenerationRecord, timer: TokenTimer | None) -> None:
        """Counts a finished generation.

        Args:
            model: The name of its model.
            record: The record of the generation.
            timer: The timer that `token_timer` returned for it.
        """

    def model_loaded(self, model: str, seconds: float) -> None:
        """Counts the loading of a model, which took this many seconds."""

    def model_unloaded(self, model: str) -> None:
        """Counts the unloading of a model that a request may load again."""

    def add(self, name: str, labels: tuple[str, ...], amount: float = 1) -> None:
        """Increases a counter, if that metric is enabled."""

    def observe(self, name: str, labels: tuple[str, ...], value: float) -> None:
        """Adds a value to a histogram, if that metric is enabled."""

    def change(self, name: str, by: int) -> None:
        """Changes a gauge without labels by an amount."""

    def summed(self, name: str) -> float | dict[str, Any] | None:
        """Returns a counter's sum, or a histogram's bounds and counts, over all labels; None if it is not counted."""
        return None


current_record: ContextVar[RequestRecord | None] = ContextVar("current_record", default=None)
"""The record of the request that the current task serves."""


def at_end(release: Callable[[], None]) -> None:
    """Calls a function when the response of the current task's request is closed, or at once outside of requests."""
    if record := current_record.get():
        record.releases.append(release)
    else:
        release()


def current_client() -> str:
    """Returns the name of the client of the current task's request; "" outside of requests."""
    record = current_record.get()
    return record.client if record is not None else ""


def scoped_salt(scope: str, salt: str) -> str:
    """Returns the salt with which a prompt is cached: the request's, or "", apart in each `cache_scope` of a key."""
    return f"{scope}\n{salt}" if scope else salt


def own_salt(salt: str) -> str:
    """Returns the salt with which the current task's prompt is cached, which depends on the scope of its API key."""
    record = current_record.get()
    return scoped_salt(record.key.cache_scope, salt) if record is not None and record.key is not None else salt


def may_use(model: str) -> bool:
    """Returns whether the API key of the current request may use this model; others do not exist for it."""
    record = current_record.get()
    patterns = record.key.models if record is not None and record.key is not None else ()
    return permits(patterns, model)


def permits(patterns: Sequence[str], model: str) -> bool:
    """Returns whether a key with these patterns may use the model of this name."""
    return not patterns or any(fnmatchcase(model, pattern) for pattern in patterns)


def log_quietly() -> None:
    """Lowers the current request's access line to DEBUG: it is one of many from an open page or a probe."""
    if record := current_record.get():
        record.quiet = True
