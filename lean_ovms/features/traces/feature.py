"""The manifest of traces."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import Options, option
from ...manifest import Feature, ObserverRow


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TraceOptions(Options):
    """The option for the server that receives spans."""

    otlp_traces_endpoint: str = option(
        "",
        "OTLP collector that receives a span for each request to a model, as a URL such as http://localhost:4317; "
        "needs the extra otel",
        group="behaviour",
    )


FEATURE = Feature(
    name="traces",
    summary="sends a span for each request to a model to an OpenTelemetry collector",
    extra="otel",
    packages=("opentelemetry",),
    options=TraceOptions,
    flags="flags.txt",
    observer=ObserverRow(make="observer:make", options=("otlp_traces_endpoint",)),
)
