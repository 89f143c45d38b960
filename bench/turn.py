"""One turn of a conversation at a server, with its answer: what the load's client does not keep."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.client import CONTENT, END, chat, payload

Messages = list[dict[str, str]]


@dataclass(kw_only=True)
class Reply:
    """One turn: seconds to the first content, the answer, usage, and the ids if they were asked for."""

    first_s: float
    text: str
    usage: Mapping[str, Any] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)


Ask = Callable[[Messages], Reply]


def over_http(where: Mapping[str, Any], tokens: int, **fields: object) -> Ask:
    """A turn at a server, each on a connection of its own."""

    def ask(messages: Messages) -> Reply:
        body = {**chat("", tokens, {**where["fields"], **fields}), "messages": messages}
        with socket.create_connection((where.get("host", "127.0.0.1"), where["port"]), 60) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request, data, first, began = payload(where["path"], body), b"", 0.0, time.perf_counter()
            sock.sendall(request)
            while not data.endswith(END):
                part = sock.recv(1 << 16)
                data += part
                if not part or not data.startswith(b"HTTP/1.1 200"):
                    raise SystemExit(data[:500].decode("utf-8", "replace") or "the server hung up")
                if not first and CONTENT.search(data):
                    first = time.perf_counter() - began
        return read(data.decode(), first or time.perf_counter() - began)

    return ask


def read(stream: str, first_s: float) -> Reply:
    """The reply of a whole stream of events."""
    events = [json.loads(line[6:]) for line in stream.split("\n") if line.startswith("data: {")]
    usage: Mapping[str, Any] = next((event["usage"] for event in reversed(events) if event.get("usage")), {})
    ids = [token for event in events for choice in event["choices"] for token in choice.get("token_ids") or ()]
    text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    return Reply(first_s=first_s, text=text, usage=usage, ids=ids)
