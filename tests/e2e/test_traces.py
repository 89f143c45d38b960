"""A server sends its spans to a collector, and also works and ends without it."""

from __future__ import annotations

from concurrent import futures
from queue import Queue
from socket import socket
from typing import Any

import grpc
import httpx
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.e2e.conftest import PATIENT_S, start_process

FAKE = ("--fake_engine", "true", "--model_name", "m")
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "10", "NO_PROXY": "127.0.0.1"}
HTTP = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", **SOON}
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


def test_a_server_without_its_collector_serves_and_ends_with_one_line() -> None:
    with socket() as closed:  # bound, but not listening
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}/v1/traces"
        environment = {**HTTP, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "0.1"}
        with start_process(*FAKE, "--otlp_traces_endpoint", endpoint, env=environment) as process:
            process.wait_for("ready: m")
            for _ in range(3):
                answer = httpx.post(f"{process.url}/v1/chat/completions", json=HELLO, timeout=PATIENT_S)
                assert answer.status_code == 200
                process.wait_for("lean_ovms.traces")
            assert process.stop() == 0
            process.wait_for(" stopped")
    assert ["WARNING lean_ovms.traces" in line for line in process.lines].count(True) == 1
    assert not [line for line in process.lines if "opentelemetry" in line or "Traceback" in line]


class Servicer(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.requests: Queue[trace_service_pb2.ExportTraceServiceRequest] = Queue()

    def Export(self, request: Any, context: Any) -> Any:
        self.requests.put(request)
        return trace_service_pb2.ExportTraceServiceResponse()


def test_spans_are_sent_by_grpc_unless_another_protocol_is_set() -> None:
    servicer, server = Servicer(), grpc.server(futures.ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        endpoint = f"http://127.0.0.1:{port}"
        with start_process(*FAKE, "--otlp_traces_endpoint", endpoint, env=SOON) as process:
            process.wait_for("ready: m")
            httpx.post(f"{process.url}/v1/chat/completions", json=HELLO, timeout=PATIENT_S).raise_for_status()
            request = servicer.requests.get(timeout=PATIENT_S)
            assert process.stop() == 0
    finally:
        server.stop(None).wait(PATIENT_S)
    assert [span.name for span in request.resource_spans[0].scope_spans[0].spans] == ["llm_request"]
