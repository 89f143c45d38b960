"""Sends spans of finished requests to an OpenTelemetry collector (--otlp_traces_endpoint, with the extra otel).

They have the same name and attributes as vLLM's. The SDK reads its own environment variables, such as
OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME and OTEL_EXPORTER_OTLP_HEADERS. Spans wait in a queue, limited by
OTEL_BSP_MAX_QUEUE_SIZE, for a thread of the SDK that sends them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ...config import Config
from ...errors import StartError
from ...observability.logging import is_set_up
from ...observability.records import RequestRecord
from .feature import TraceOptions

logger = logging.getLogger("lean_ovms.traces")

CLOSE_S = 5.0
"""Seconds for which the end of the server waits for the collector."""


def make(config: Config) -> Traces:
    """Creates the observer that makes spans for the collector of the options. Raises StartError."""
    try:
        return Traces(config.of(TraceOptions).otlp_traces_endpoint)
    except ValueError as error:  # raised by the SDK for a value in the environment
        raise StartError(f"--otlp_traces_endpoint: {error}") from None


class Traces:
    """Makes a span of each finished request. Raises StartError."""

    def __init__(self, endpoint: str) -> None:
        self._exporter = _LoggingExporter(_otlp_exporter(endpoint))
        resource = Resource.create({"service.name": "lean_ovms"}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("lean_ovms")
        self._propagator = TraceContextTextMapPropagator()
        if is_set_up():
            library = logging.getLogger("opentelemetry")
            library.handlers[:], library.propagate = [_DebugHandler()], False

    def add(self, record: RequestRecord) -> None:
        """Makes the span of a finished request to a model, if its trace is sampled."""
        if not (record.generations or (record.model and record.error)):
            return
        end = time.time_ns()
        context = self._propagator.extract({"traceparent": record.traceparent, "tracestate": record.tracestate})
        start = end - int(record.seconds * 1e9)
        span = self._tracer.start_span("llm_request", context, SpanKind.SERVER, start_time=start)
        if not span.is_recording():
            return
        span.set_attributes(_attributes(record))
        if record.error and not 400 <= record.status < 500:
            span.set_status(StatusCode.ERROR, record.error)
        span.end(end)
        if not record.traceparent:
            own = span.get_span_context()
            record.traceparent = f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"

    def close(self) -> None:
        """Sends the waiting spans within CLOSE_S seconds. Idempotent."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        if closing.is_alive():
            self._exporter.shutdown()  # ends its retries


def _attributes(record: RequestRecord) -> dict[str, Any]:
    found: dict[str, Any] = {
        "gen_ai.request.id": record.request_id,
        "gen_ai.response.model": record.model,
        "gen_ai.latency.e2e": record.seconds,
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
    }
    if record.error:
        found["error.type"] = record.error
    if record.sampling is not None:
        for name in ("max_tokens", "temperature", "top_p", "n"):
            if (value := getattr(record.sampling, name)) is not None:
                found[f"gen_ai.request.{name}"] = value
    if not record.generations:
        return found
    found["gen_ai.usage.prompt_tokens"] = record.prompt_tokens
    found["gen_ai.usage.completion_tokens"] = record.completion_tokens
    found["gen_ai.response.finish_reasons"] = record.finish_reasons
    if record.ttft_s is not None:
        found["gen_ai.latency.time_to_first_token"] = record.ttft_s
    longest = max(record.generations, key=lambda generation: generation.seconds)
    for phase, seconds in longest.phases.items():
        found[f"gen_ai.latency.time_in_{phase if phase == 'queue' else f'model_{phase}'}"] = seconds
    return found


def _otlp_exporter(endpoint: str) -> SpanExporter:
    environ = os.environ
    protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "grpc"
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(endpoint=endpoint, insecure=True)  # an https:// URL is encrypted nevertheless
    if protocol != "http/protobuf":
        raise StartError(f"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL must be grpc or http/protobuf, not {protocol!r}")
    if not endpoint.startswith(("http://", "https://")):
        raise StartError("--otlp_traces_endpoint must be a URL such as http://localhost:4318/v1/traces")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(endpoint=endpoint)


class _LoggingExporter(SpanExporter):
    """Logs once when spans cannot be sent, and once when they can be sent again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        failing = result is not SpanExportResult.SUCCESS
        if failing and not self._failing:
            logger.warning(
                "--otlp_traces_endpoint: spans are dropped, since they cannot be sent; --log_level DEBUG shows the "
                "reason"
            )
        elif self._failing and not failing:
            logger.info("--otlp_traces_endpoint: spans are sent again")
        self._failing = failing
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _DebugHandler(logging.Handler):
    """Logs the messages of the libraries at level DEBUG, since they write a line for each attempt and each span."""

    def emit(self, record: logging.LogRecord) -> None:
        logger.debug("%s: %s", record.name, record.getMessage())
