"""What is noted of an exchange while it is served: the access line and the metrics are written from it in the end.

The exchange's note is found through a context variable, so that a handler need not pass it on: it is set for the
handler's task (a task of its own, says the door contract) and copied into the tasks that the handler starts.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRecord:
    """How a generation went.

    engine_id: its number in the engine's log. ttft_s: from the request to its first token, None without one.
    seconds: from the request to its end. decode_s: from the first token to the end. finishes: "stop", "length",
    "abort" or "error", one for each answer. error: the code of what went wrong. cached_tokens: what the prefix cache
    had of the prompt, None if that is not known.
    """

    engine_id: int
    prompt_tokens: int
    completion_tokens: int
    ttft_s: float | None
    seconds: float
    decode_s: float
    finishes: tuple[str, ...]
    error: str = ""
    cached_tokens: int | None = None


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One exchange. started: time.monotonic(). route: the path as the table of routes has it, "" if it is unknown.

    model: a served model that it is about. stream: text is to come piece by piece. error: the code of what went wrong,
    in the status or in a stream. bytes, pieces: of the body, as far as the door took it. courses: what was generated.
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
    pieces: int = 0
    seconds: float = 0.0
    courses: list[GenerationRecord] = field(default_factory=list)

    @property
    def ttft_s(self) -> float | None:
        """From the request to the first token of any answer."""
        return min((c.ttft_s for c in self.courses if c.ttft_s is not None), default=None)


CLIENT_LEFT = 499
"""The status of an exchange whose client did not wait for the answer (nginx's number; it is never sent)."""

current: ContextVar[RequestRecord | None] = ContextVar("current", default=None)
"""The note of the exchange that this task serves."""
