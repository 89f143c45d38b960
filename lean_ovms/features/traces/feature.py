"""The manifest of traces."""

from __future__ import annotations

from ...manifest import Feature, ObserverRow
from .options import TraceOptions

FEATURE = Feature(
    name="traces",
    summary="sends a span of each request to a model to an OpenTelemetry collector",
    extra="otel",
    packages=("opentelemetry",),
    options=TraceOptions,
    flags="flags.txt",
    observer=ObserverRow(make="observer:make", options=("otlp_traces_endpoint",)),
)
