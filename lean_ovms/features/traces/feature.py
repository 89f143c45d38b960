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
        "collector that gets a span of each request to a model, by OTLP: a URL such as http://localhost:4317; it "
        "needs the extra otel",
        group="behaviour",
    )


FEATURE = Feature(
    name="traces",
    summary="sends a span of each request to a model to an OpenTelemetry collector",
    extra="otel",
    packages=("opentelemetry",),
    options=TraceOptions,
    flags="flags.txt",
    observer=ObserverRow(make="observer:make", options=("otlp_traces_endpoint",)),
)
