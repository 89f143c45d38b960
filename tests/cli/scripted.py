"""A server with scripted answers, which records its requests."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODELS = {"data": [{"id": "embedder", "task": "embeddings"}, {"id": "m", "task": "text_generation"}]}


class ScriptedServer:
    """`answers` has answers by path, given one after the other; the last one is given to all further requests.

    An answer is a JSON value, a list of events of a stream, or a tuple of status and JSON value. A stream stays open at
    a None. `bodies` and `headers` have those of the requests.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: dict[str, deque[Any]] = {"/v1/models": deque([MODELS])}
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.left = threading.Event()
        self._last: dict[str, Any] = {}

    def next_answer(self, path: str) -> Any:
        if self.answers.get(path):
            self._last[path] = self.answers[path].popleft()
        return self._last[path]

    def stream(self, path: str, *deltas: dict[str, Any] | None) -> None:
        """Adds a streamed answer of chat deltas."""
        events = [delta and {"choices": [{"delta": delta}]} for delta in deltas]
        self.answers.setdefault(path, deque()).append(events)


@contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = script.next_answer(self.path)
            status, value = answer if isinstance(answer, tuple) else (200, answer)
            self.send_response(status)
            self.end_headers()
            if not isinstance(value, list):
                self.wfile.write(json.dumps(value).encode())
                return
            for event in value:
                if event is None:
                    self._await_leaving()
                    return
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def do_POST(self) -> None:
            script.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            script.headers.append(dict(self.headers.items()))
            self.do_GET()

        def _await_leaving(self) -> None:
            self.rfile.read(1)  # ends when the client closes the connection
            script.left.set()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script = ScriptedServer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
