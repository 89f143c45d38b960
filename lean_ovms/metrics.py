"""The metrics, on prometheus_client; observed where an exchange ends (api) and where a generation ends (model).

`Metrics` counts nothing, and is what a server without --metrics_enable has: prometheus_client is imported by
`Prometheus` only. Label values come from our own tables, never from a client, so their number is bounded.
"""

from __future__ import annotations

from .shapes import EngineStats, Usage

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)


class Metrics:
    """What can be observed; does nothing."""

    enabled = False

    def exchange(self, path: str, method: str, status: int, seconds: float) -> None:
        """An exchange ended. path: the route's, or "other"."""

    def generation(self, model: str, counts: Usage, ttft_s: float | None, seconds: float) -> None:
        """A generation was closed. ttft_s: from its start to its first token; None if there was none."""

    def not_imposed(self, model: str) -> None:
        """A generation runs without all of the form that was asked for."""

    def engine(self, model: str, stats: EngineStats | None, restarts: int) -> None:
        """The engine's accounts at the time of a scrape; None while it is not ready."""

    def expose(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return b""


class Prometheus(Metrics):
    """Metrics in a registry of their own."""

    enabled = True

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        registry = self._registry = CollectorRegistry()
        name, model = "lean_ovms_{}".format, ["model"]

        def histogram(what: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name(what), text, model, buckets=buckets, registry=registry)

        def gauge(what: str, text: str) -> Gauge:
            return Gauge(name(what), text, model, registry=registry)

        self._requests = Counter(name("requests"), "requests answered", ["path", "method", "status"], registry=registry)
        self._request_s = Histogram(
            name("request_seconds"), "from request to last byte", ["path"], buckets=SECONDS, registry=registry
        )
        self._prompt = Counter(name("prompt_tokens"), "prompt tokens", model, registry=registry)
        self._completion = Counter(name("completion_tokens"), "generated tokens", model, registry=registry)
        self._ttft = histogram("time_to_first_token_seconds", "from accepted to first token", SECONDS)
        self._per_token = histogram("time_per_output_token_seconds", "mean after the first, per generation", SECONDS)
        self._prompt_size = histogram("prompt_length_tokens", "prompt tokens of a generation", TOKENS)
        self._not_imposed = Counter(
            name("structured_output_not_imposed"), "generations without the form asked for", model, registry=registry
        )
        self._running = gauge("running_sequences", "sequences in the engine's batch")
        self._queued = gauge("queued_sequences", "sequences waiting for the engine")
        self._kv = gauge("kv_cache_used_ratio", "share of KV cache blocks held by running sequences")
        self._restarts = gauge("engine_restarts", "engine children started after the first")
        self._preemptions = gauge("preemptions", "sequences put back to make room, since the engine started")
        self._recoveries = gauge("recoveries", "pipeline failures survived, since the engine started")

    def exchange(self, path: str, method: str, status: int, seconds: float) -> None:
        self._requests.labels(path, method, str(status)).inc()
        self._request_s.labels(path).observe(seconds)

    def generation(self, model: str, counts: Usage, ttft_s: float | None, seconds: float) -> None:
        self._prompt.labels(model).inc(counts.prompt_tokens)
        self._completion.labels(model).inc(counts.completion_tokens)
        self._prompt_size.labels(model).observe(counts.prompt_tokens)
        if ttft_s is not None:
            self._ttft.labels(model).observe(ttft_s)
            if counts.completion_tokens > 1:
                self._per_token.labels(model).observe((seconds - ttft_s) / (counts.completion_tokens - 1))

    def not_imposed(self, model: str) -> None:
        self._not_imposed.labels(model).inc()

    def engine(self, model: str, stats: EngineStats | None, restarts: int) -> None:
        self._restarts.labels(model).set(restarts)
        if stats is None:
            return
        self._running.labels(model).set(stats.running)
        self._queued.labels(model).set(stats.queued)
        self._kv.labels(model).set(stats.kv_blocks_used / max(stats.kv_blocks_total, 1))
        self._preemptions.labels(model).set(stats.preemptions)
        self._recoveries.labels(model).set(stats.recoveries)

    def expose(self) -> bytes:
        from prometheus_client import generate_latest

        return bytes(generate_latest(self._registry))
