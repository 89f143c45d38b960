"""The requests that a proxy of this process serves, and what decides which replica they go to: the beginnings of their
prompts, or the response that they are about.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any

import orjson

from ...api.generation.messages import without_billing
from ...types import Json
from ...util.prefix_router import Prefixes, prefixes

MOST_BODY = 16 << 20
"""Bytes of a body of which the prompt is read; longer ones are routed by load alone."""
MOST_RESPONSES = 16384
"""Responses of which the replica is remembered."""
LEADING = ("tools", "functions", "system", "instructions")
"""Fields that templates write before a conversation."""
PROMPTS = ("messages", "input", "prompt")
"""Fields with the prompt itself, which grows at its end from one turn to the next."""
OF_RESPONSE = re.compile(r"/responses/([^/]+)")
"""The id of a stored response in a path."""
MADE_RESPONSE = re.compile(rb'"id":\s?"(resp_\w+)"')
"""The id of a response where one begins, as JSON or in the first event of a stream."""


class ProxiedRequest:
    """One request, while a proxy of this process serves it."""

    def __init__(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        """Reads nothing yet: only a router that asks for the prompt pays for it.

        Args:
            path: The path.
            headers: The headers, with names in lower case.
            body: The body; empty where it is not known.
        """
        self.replica: Hashable = None
        """The id of the replica that has it; None: it is not known."""
        self._makes_response = path.endswith("/responses")
        found = OF_RESPONSE.search(path)
        self._response = found[1] if found is not None else ""
        self._key = headers.get("authorization") or headers.get("x-api-key", "")
        self._body = body
        self._prompt: Prefixes | None = None

    def prompt(self) -> Prefixes:
        """Returns the hashes of the prefixes of the prompt; none where there is no prompt, or only a short one."""
        if self._prompt is None:
            values, self._body = _values(self._body), b""
            self._response = self._response or str(values.get("previous_response_id") or "")
            self._prompt = _prefixes(self._key, values)
        return self._prompt

    def home(self) -> Hashable:
        """Returns the id of the replica that has made the response which this request goes on with, or is about; None:
        there is no such response, or it is not known any more."""
        self.prompt()
        return MADE_BY.get(self._response)

    def answered(self, data: bytes) -> None:
        """Remembers which replica has made the response that begins with these bytes."""
        if self._makes_response and data:
            self._makes_response = False
            if (found := MADE_RESPONSE.search(data)) is not None:
                MADE_BY[found[1].decode()] = self.replica
                if len(MADE_BY) > MOST_RESPONSES:
                    MADE_BY.popitem(last=False)


IN_FLIGHT: dict[str, ProxiedRequest] = {}
"""The requests by their ids. The router may run in another thread: it takes a copy of what it goes through."""
MADE_BY: OrderedDict[str, Hashable] = OrderedDict()
"""The ids of replicas by those of responses that they have made, the latest last."""


def _values(body: bytes) -> Json:
    """Returns the members of a body; none where it is no JSON object."""
    try:
        values = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return values if isinstance(values, dict) else {}


def _prefixes(key: str, values: Json) -> Prefixes:
    """Returns the hashes of a prompt, by what keeps caches of equal prompts apart: model or adapter, API key, salt."""
    namespace = (key, str(values.get("model")), str(values.get("cache_salt")))
    if conversation := values.get("conversation"):  # its items are not in the body
        return [hash((namespace, "conversation", str(conversation)))]
    parts = [_stable(values[name]) for name in LEADING if name in values]
    parts += [values[name] for name in PROMPTS if name in values]
    text = b"".join([orjson.dumps(part)[:-1] for part in parts])  # without the character that ends a list or a text
    return prefixes(namespace, text)


def _stable(value: Any) -> Any:
    """Returns a system text, or its parts, without what differs in each request."""
    if isinstance(value, str):
        return without_billing(value)
    if not isinstance(value, list):
        return value
    texts = [part.get("text") if isinstance(part, dict) else None for part in value]
    return [part for part, text in zip(value, texts, strict=True) if not isinstance(text, str) or without_billing(text)]
