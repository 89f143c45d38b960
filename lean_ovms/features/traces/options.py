"""The option of traces."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import Options, option


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TraceOptions(Options):
    """Where spans are sent to."""

    otlp_traces_endpoint: str = option(
        "",
        "collector that gets a span of each request to a model, by OTLP: a URL such as http://localhost:4317; it "
        "needs the extra otel",
        group="behaviour",
    )
