"""The requests that a proxy of this process is serving, and what decides their replica.

That is the prefix of their prompt, or the stored response to which they refer.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from ...composition import compose
from ...types import Json
from ..chat.request import without_changing_line
from ..replicas.prefix_router import BLOCK, MAX_BLOCKS, Prefixes, prefixes

MOST_BODY = 16 << 20
"""The largest body, in bytes, whose prompt is read. Requests with longer ones are routed by load alone."""
MOST_RESPONSES = 16384
"""The number of responses whose replica is remembered."""
LEADING = ("tools", "functions", "system", "instructions")
"""The fields that templates write before a conversation."""
PROMPTS = ("messages", "input", "prompt")
"""The fields with the prompt itself, which grows at its end from turn to turn."""
MARKS = "prefixes"
"""The key of a replica's report: the marks of the prompts that it has computed, one after another."""
MARK_BYTES = 8
"""The size of a mark in bytes."""
MARKED_BLOCKS = 8
"""The number of the router's blocks from one mark to the next."""
MARKED = MARKED_BLOCKS * BLOCK
"""The number of bytes of a prompt from one mark to the next."""
OF_RESPONSE = re.compile(r"/responses/([^/]+)")
"""Matches the id of a stored response in a path."""
MADE_RESPONSE = re.compile(rb'"id":\s?"(resp_\w+)"')
"""Matches the id at the beginning of a response, as JSON or in the first event of a stream."""


class ProxiedRequest:
    """A request while a proxy of this process is serving it."""

    def __init__(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        """Creates the request without parsing its body. It is parsed only if a router asks for the prompt.

        Args:
            path: The path.
            headers: The headers, with names in lower case.
            body: The body; empty if it is not known.
        """
        self.replica: Hashable = None
        """The id of the replica that computes it; None if unknown."""
        self._makes_response = path.endswith("/responses")
        found = OF_RESPONSE.search(path)
        self._response = found[1] if found is not None else ""
        self._key = headers.get("authorization") or headers.get("x-api-key", "")
        self._body = body
        self._text: _Text | None = None
        self._prompt: Prefixes | None = None

    def prompt(self) -> Prefixes:
        """Returns the hashes of the prompt's prefixes; empty if there is no prompt or only a short one."""
        if self._prompt is None:
            self._prompt = self._read().prefixes()
        return self._prompt

    def marks(self) -> list[bytes]:
        """Returns a hash of every eighth prefix, the same in every process."""
        return self._read().marks()

    def _read(self) -> _Text:
        if self._text is None:
            values, self._body = _values(self._body), b""
            self._response = self._response or str(values.get("previous_response_id") or "")
            self._text = _text(self._key, values)
        return self._text

    def home(self) -> Hashable:
        """Returns the id of the replica that made the response to which a request refers; None if none is known."""
        self.prompt()
        return MADE_BY.get(self._response)

    def answered(self, data: bytes) -> None:
        """Records which replica has made the response that begins with these bytes."""
        if self._makes_response and data:
            self._makes_response = False
            if (found := MADE_RESPONSE.search(data)) is not None:
                MADE_BY[found[1].decode()] = self.replica
                if len(MADE_BY) > MOST_RESPONSES:
                    MADE_BY.popitem(last=False)


IN_FLIGHT: dict[str, ProxiedRequest] = {}
"""The requests in progress, by id. The router may run in another thread, so it iterates over a copy."""
MADE_BY: OrderedDict[str, Hashable] = OrderedDict()
"""The ids of the replicas that made responses, by the ids of the responses, the latest last."""


def _values(body: bytes) -> Json:
    """Returns the members of a body; {} if it is not a JSON object."""
    try:
        values = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return values if isinstance(values, dict) else {}


@dataclass(frozen=True, slots=True)
class _Text:
    """The beginning of a prompt."""

    namespace: tuple[str, ...]
    """The values that separate caches of equal prompts: model or adapter, API key, salt."""
    data: bytes
    """The texts in the order in which templates write them; empty for a stored conversation."""
    conversation: str = ""
    """The id of the stored conversation; empty for none."""

    def prefixes(self) -> Prefixes:
        if self.conversation:
            return [hash((self.namespace, self.conversation))]
        return prefixes(self.namespace, self.data)

    def marks(self) -> list[bytes]:
        last = blake2b(repr((self.namespace, self.conversation)).encode(), digest_size=MARK_BYTES)
        found = [last.digest()] if self.conversation else []
        for end in range(MARKED, len(self.data) + 1, MARKED):
            last.update(self.data[end - MARKED : end])
            found.append(last.digest())
        return found


def _text(key: str, values: Json) -> _Text:
    """Returns the beginning of a body's prompt."""
    namespace = (key, str(values.get("model")), str(values.get("cache_salt")))
    if conversation := values.get("conversation"):  # the body does not contain the conversation's items
        return _Text(namespace, b"", str(conversation))
    parts = [_stable(values[name]) for name in LEADING if name in values]
    parts += [values[name] for name in PROMPTS if name in values]
    # Without the closing bracket or quote, so that a longer text begins with it.
    text = b"".join([orjson.dumps(part)[:-1] for part in parts])
    return _Text(namespace, text[: BLOCK * MAX_BLOCKS])


def reported(report: Mapping[str, Any]) -> frozenset[bytes]:
    """Returns the marks in a replica's report."""
    data = report.get(MARKS, b"")
    return frozenset(data[start : start + MARK_BYTES] for start in range(0, len(data), MARK_BYTES))


def _stable(value: Any) -> Any:
    """Returns a system text, or its parts, without the lines that differ in each request."""
    lines = compose().changing_lines
    if isinstance(value, str):
        return without_changing_line(value, lines)
    if not isinstance(value, list):
        return value
    texts = [part.get("text") if isinstance(part, dict) else None for part in value]
    pairs = zip(value, texts, strict=True)
    return [part for part, text in pairs if not isinstance(text, str) or without_changing_line(text, lines)]
