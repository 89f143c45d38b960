"""A collector of OpenTelemetry, which receives spans by OTLP over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PATIENT_S = 60.0


class Collector:
    """A collector at `url`. With `hangs`, no request is answered until `release` is set."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.requests: Queue[ExportTraceServiceRequest] = Queue()
        self.arrived, self.release = threading.Event(), threading.Event()
        if not hangs:
            self.release.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                collector.arrived.set()
                collector.release.wait(PATIENT_S)
                collector.requests.put(ExportTraceServiceRequest.FromString(data))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Writes nothing to stderr."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    def received(self) -> list[Any]:
        """Returns the spans of the next request."""
        [resource] = self.requests.get(timeout=PATIENT_S).resource_spans
        return [span for scope in resource.scope_spans for span in scope.spans]


@contextmanager
def collecting(*, hangs: bool = False) -> Iterator[Collector]:
    collector = Collector(hangs=hangs)
    thread = threading.Thread(target=collector.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.release.set()
        collector.server.shutdown()
        collector.server.server_close()
        thread.join(PATIENT_S)


def attributes(span: Any) -> dict[str, Any]:
    """Returns the attributes of a span by name, as Python values."""
    found = {}
    for attribute in span.attributes:
        kind = attribute.value.WhichOneof("value")
        value = getattr(attribute.value, kind)
        found[attribute.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found
