"""The requests that a proxy of this process serves, and the beginnings of their prompts, by which they are routed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import orjson

from ...api.generation.messages import without_billing
from ...util.prefix_router import Prefixes, prefixes

MOST_BODY = 16 << 20
"""Bytes of a body of which the prompt is read; longer ones are routed by load alone."""
LEADING = ("tools", "functions", "system", "instructions")
"""Fields that templates write before a conversation. The one whose prompt is nothing else goes where they are known."""
PROMPTS = ("messages", "input", "prompt")
"""Fields with the prompt itself, which grows at its end from one turn to the next."""


class ProxiedRequest:
    """One request, while a proxy of this process serves it."""

    def __init__(self, headers: Mapping[str, str], body: bytes) -> None:
        """Reads nothing yet: only a router that asks for the prompt pays for it.

        Args:
            headers: The headers, with names in lower case.
            body: The body; empty where it is not known.
        """
        self.replica: Hashable = None
        """The id of the replica that has it; None: it is not known."""
        self._key = headers.get("authorization") or headers.get("x-api-key", "")
        self._body = body
        self._prompt: Prefixes | None = None

    def prompt(self) -> Prefixes:
        """Returns the hashes of the prefixes of the prompt; none where there is no prompt, or only a short one."""
        if self._prompt is None:
            self._prompt, self._body = _prefixes(self._key, self._body), b""
        return self._prompt


IN_FLIGHT: dict[str, ProxiedRequest] = {}
"""The requests by their ids. The router may run in another thread: it takes a copy of what it goes through."""


def _prefixes(key: str, body: bytes) -> Prefixes:
    """Returns the hashes of a prompt, by what keeps caches of equal prompts apart: model or adapter, API key, salt."""
    try:
        values = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ()
    if not isinstance(values, dict):
        return ()
    namespace = (key, str(values.get("model")), str(values.get("cache_salt")))
    if conversation := values.get("conversation"):  # its items are not in the body
        return [hash((namespace, "conversation", str(conversation)))]
    parts = [_stable(values[name]) for name in LEADING if name in values]
    parts += [values[name] for name in PROMPTS if name in values]
    return prefixes(
        namespace, b"".join([orjson.dumps(part)[:-1] for part in parts])
    )  # all but what ends a list or text


def _stable(value: Any) -> Any:
    """Returns a system text, or its parts, without what differs in each request."""
    if isinstance(value, str):
        return without_billing(value)
    if not isinstance(value, list):
        return value
    texts = [part.get("text") if isinstance(part, dict) else None for part in value]
    return [part for part, text in zip(value, texts, strict=True) if not isinstance(text, str) or without_billing(text)]
