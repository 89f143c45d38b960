"""Records a request while it is served; the access line and the metrics are written from that at its end.

The record is found through a context variable, so that a handler need not pass it on: it is set for the handler's task
(a task of its own, by the transport contract) and copied into the tasks that the handler starts.
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
    """One finished generation. Not changed once it is built."""

    engine_id: int
    """The number in the engine's log."""
    prompt_tokens: int
    """The tokens of the prompt."""
    completion_tokens: int
    """The tokens of all choices."""
    ttft_s: float | None
    """The seconds from the request to its first token; None: there was none."""
    seconds: float
    """The seconds from the request to its end."""
    decode_s: float
    """The seconds from the first token to the end."""
    finish_reasons: tuple[str, ...]
    """"stop", "length", "abort" or "error" for each choice."""
    error: str = ""
    """The code of the error; empty: there was none."""
    cached_tokens: int | None = None
    """The prompt tokens that were found in the prefix cache; None: not known."""
    queue_s: float | None = None
    """The seconds from the request to the beginning of its prefill; None: not known."""

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
    """The API key of a request."""

    @property
    def name(self) -> str:
        """The name of the key."""

    @property
    def models(self) -> tuple[str, ...]:
        """Patterns of the names of models that it may use; empty: every model."""

    @property
    def cache_scope(self) -> str:
        """A word that keys have in common which share cached prompts."""

    def generation_finished(self, generation: GenerationRecord, model: str) -> None: ...


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request and its response."""

    request_id: str
    """The id of the request, for its client and the log."""
    method: str
    """The HTTP method."""
    path: str
    """The path."""
    peer: str
    """The other end of the connection, or the client that a trusted proxy names."""
    started: float
    """When the request came, by time.monotonic()."""
    route: str = ""
    """The path in the table of routes; empty: it has none."""
    model: str = ""
    """The served model that it names."""
    stream: bool = False
    """Whether the client wants a stream."""
    error: str = ""
    """The code of the error, in the status or in a stream; empty: there was none."""
    status: int = 0
    """The HTTP status."""
    bytes: int = 0
    """The bytes of the body, as far as the transport read it."""
    chunks: int = 0
    """The pieces of the body, as far as the transport read it."""
    seconds: float = 0.0
    """The seconds from the request to its last byte."""
    generations: list[GenerationRecord] = field(default_factory=list)
    """The finished generations."""
    releases: list[Callable[[], None]] = field(default_factory=list)
    """Are called when the response is closed; each gives back what the request has taken."""
    release_body: Callable[[], None] = never
    """Gives back the memory of its body before that. Idempotent."""
    client: str = ""
    """The name of its client, as api.clients has it."""
    quiet: bool = False
    """Whether its access line has the level DEBUG."""
    key: Key | None = None
    """The API key; None: it has no valid one."""
    sampling: SamplingParams | None = None
    """How its generations are sampled."""
    traceparent: str = ""
    """The place in a trace (https://www.w3.org/TR/trace-context/); empty: it has no valid one."""
    tracestate: str = ""
    """The tracestate of that trace."""
    number: int = field(default_factory=itertools.count(1).__next__)
    """The number among the requests of this process."""

    def add(self, generation: GenerationRecord, model: str = "") -> None:
        """Adds a finished generation, whose tokens count for the request's API key.

        Args:
            generation: The generation.
            model: The model that made it; "": one that only worked for the request's model, and is not in the access
                line.
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


class TokenTimer(Protocol):
    """Measures the times between the tokens of one generation."""

    def observe(self, count: int) -> None:
        """Observes `count` tokens of a choice that arrived now."""


Sample = tuple[str, tuple[str, ...], float]
"""The name of a metric, its labels and its value."""


class Metrics:
    """Counts events; this one counts nothing, as a server without metrics does."""

    enabled = False
    """Whether anything is counted."""

    def request_finished(self, record: RequestRecord) -> None:
        """Observes that the response of a request is closed."""

    def token_timer(self) -> TokenTimer | None:
        """Returns a timer for a new generation; None: nothing is to be measured."""
        return None

    def generation_finished(self, model: str, record: GenerationRecord, timer: TokenTimer | None) -> None:
        """Observes the end of a generation.

        Args:
            model: The name of its model.
            record: What is known of it.
            timer: What `token_timer` returned for it.
        """

    def model_loaded(self, model: str, seconds: float) -> None:
        """Observes that a model has been loaded, which took this time."""

    def model_unloaded(self, model: str) -> None:
        """Observes that a model has been unloaded, to be loaded again by a request."""

    def add(self, name: str, labels: tuple[str, ...], amount: float = 1) -> None:
        """Adds to a counter, if it is served."""

    def observe(self, name: str, labels: tuple[str, ...], value: float) -> None:
        """Adds a value to a histogram, if it is served."""

    def change(self, name: str, by: int) -> None:
        """Adds to a gauge without labels, which a feature counts up and down."""

    def summed(self, name: str) -> float | dict[str, Any] | None:
        """Returns a counter, or the bounds and counts of a histogram, over all labels; None: it is not counted."""
        return None


current_record: ContextVar[RequestRecord | None] = ContextVar("current_record", default=None)
"""The record of the request that this task serves."""


def current_client() -> str:
    """Returns the client of this task's request; "" without one."""
    record = current_record.get()
    return record.client if record is not None else ""


def scoped_salt(scope: str, salt: str) -> str:
    """Returns the salt of a prompt in the prefix cache, which no other scope has.

    Args:
        scope: The scope, the `cache_scope` of a key.
        salt: The salt of the request; "": it has none.
    """
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
    """Has the access line of the current request at level DEBUG: it is one of many, of an open page or a probe."""
    if record := current_record.get():
        record.quiet = True
