"""Builds the response object, OpenAI's Response: fields that repeat the request, then the output.

The order of keys is OVMS's, then OpenAI's other fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field

from ...api.response import now
from ...api.stored_objects import item_id
from ...errors import BadRequest, RequestError, TooManyRequests
from ...types import Delta, Json, Timings, Usage
from ..chat.chunks import timings
from .tool_forms import ToolOrigin


class TokenIds:
    """The token ids of a response: those of its prompt, and those generated so far for each choice."""

    def __init__(self, prompt: Sequence[int], choices: int) -> None:
        self._prompt = prompt
        self._choices: list[list[int]] = [[] for _ in range(choices)]

    def add(self, delta: Delta) -> None:
        """Adds the tokens of a delta."""
        self._choices[delta.index] += delta.tokens

    def to_json(self) -> Json:
        """Returns vLLM's fields prompt_token_ids and token_ids; of several choices, the latter has a list for each."""
        ids = self._choices[0] if len(self._choices) == 1 else self._choices
        return {"prompt_token_ids": self._prompt, "token_ids": ids}


@dataclass(slots=True, kw_only=True)
class ResponseObject:
    """Builds the JSON of one response at any time of its life; the fields are the constant parts."""

    model: str
    """The name of the model."""
    echo: Json
    """The fields that repeat the request."""
    request_id: InitVar[str] = ""
    """The client's request id, which is appended to the random id of the response; "" if there is none."""
    ids: TokenIds | None = None
    """The token ids; None if the request does not ask for them."""
    named_by_id: bool = False
    """Whether log probabilities name tokens by their ids."""
    origins: dict[str, ToolOrigin] = field(default_factory=dict)
    """The tools that are not plain functions, by the names of their functions."""
    seal: Callable[[str], str] | None = None
    """Encrypts reasoning; None if the request does not ask for encrypted reasoning."""
    times: Callable[[], Timings] | None = None
    """Returns the timings so far; None if the response has none."""
    timed_events: bool = False
    """Whether the events of text have timings as well."""
    id: str = field(default_factory=lambda: item_id("resp"))
    """The id of the response."""
    created_at: int = field(default_factory=now)
    """The time of creation, in seconds since 1970."""

    def __post_init__(self, request_id: str) -> None:
        if request_id:  # appended to a random part, so that clients cannot overwrite stored responses
            self.id = f"{self.id}_{request_id}"

    def running(self, status: str, output: list[Json]) -> Json:
        """Returns the object of a response that is not finished, such as one in progress."""
        return self._object(status, output, {"incomplete_details": None, "error": None}, None)

    def final(
        self, status: str, output: list[Json], usage: Usage, error: RequestError | None, incomplete: str = ""
    ) -> Json:
        """Returns the object of a finished response.

        Args:
            status: "completed", "incomplete", "failed" or "cancelled".
            output: The items of the output.
            usage: The numbers of tokens; they are left out after an error.
            error: The error that ended the response, or None.
            incomplete: Why the response is incomplete: "length", "stop" (not a word of OpenAI), or "" if it is not.
        """
        ending: Json = {"completed_at": now()} if status == "completed" else {}
        why = {"reason": "max_output_tokens" if incomplete == "length" else None}
        ending["incomplete_details"] = why if status == "incomplete" else None
        ending["error"] = None if error is None else failure(error)
        times = {"timings": timings(self.times())} if self.times and not error else {}
        return self._object(status, output, ending, None if error else counts(usage)) | times

    def _object(self, status: str, output: list[Json], ending: Json, usage: Json | None) -> Json:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            **ending,
            "model": self.model,
            "status": status,
            **self.echo,
            "output": output,
            "usage": usage,
            **(self.ids.to_json() if self.ids else {}),
        }


def failure(error: RequestError) -> Json:
    """Returns an error in the form of `response.error`, with a code of OpenAI's closed list."""
    limited = "rate_limit_exceeded" if isinstance(error, TooManyRequests) else "server_error"
    code = "invalid_prompt" if isinstance(error, BadRequest) else limited
    return {"code": code, "message": error.message}


def counts(usage: Usage) -> Json:
    """Returns the usage object. Unknown cached prompt tokens are 0, since the schema requires a number."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
