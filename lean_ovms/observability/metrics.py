"""The metrics: each one once, as a row; what is observed goes into plain numbers, prometheus_client prints them.

`Metrics` counts nothing, and is what a server without --metrics_enable has. `Prometheus` counts where an exchange ends
(api) and where a generation ends (model): 1.2 us and 3 us; a step of a stream costs 0.2 us, for the gap before it.

Names and labels are OVMS's where it has the metric (contract section 12), else vLLM's, else our own. Label values come
from our own tables, never from a client, so their number is bounded.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ..errors import StartError
from ..types import EngineStats
from .records import CLIENT_LEFT, GenerationRecord, RequestRecord

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 1800)
FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
"""vLLM's for the time to the first token."""
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10, 40)
"""vLLM's between tokens, and finer ones for small models."""
WHOLE = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
"""vLLM's for whole requests, and finer ones."""
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
MICROSECONDS = tuple(float(int(10 * 1.8**i)) for i in range(33))
"""OVMS's."""

METHODS = ("Unary", "Stream")
FINISHES = ("stop", "length", "abort", "error")
_OVMS = ("api", "interface", "method", "name")
_MODEL = ("model_name",)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. name: as it is exposed, a histogram's without _bucket, _sum and _count."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = _MODEL
    buckets: tuple[float, ...] = ()


FAMILIES = (
    Family("ovms_requests_accepted", "counter", "requests about a model that were taken on", _OVMS),
    Family("ovms_requests_rejected", "counter", "requests refused because of load, or of a model not ready", _OVMS),
    Family("ovms_graph_error", "counter", "requests that ended with an error", _OVMS),
    Family("ovms_responses", "counter", "whole answers, and pieces of streams", _OVMS),
    Family("ovms_current_graphs", "gauge", "requests being served", ("name",)),
    Family("ovms_graph_processing_time_us", "histogram", "time of a request", ("method", "name"), MICROSECONDS),
    Family("vllm:num_requests_running", "gauge", "sequences in the engine's batch"),
    Family("vllm:num_requests_waiting", "gauge", "sequences waiting for the engine"),
    Family("vllm:kv_cache_usage_perc", "gauge", "share of the KV cache that running sequences hold, 0 to 1"),
    Family("vllm:num_preemptions_total", "counter", "sequences put back to make room"),
    Family("vllm:spec_decode_num_drafts_total", "counter", "guesses of a draft model or of prompt lookup"),
    Family("vllm:spec_decode_num_accepted_tokens_total", "counter", "tokens of them that were right"),
    Family("vllm:prefix_cache_queries_total", "counter", "prompt tokens that the prefix cache was asked for"),
    Family("vllm:prefix_cache_hits_total", "counter", "prompt tokens that it had"),
    Family("vllm:prompt_tokens_total", "counter", "prompt tokens"),
    Family("vllm:generation_tokens_total", "counter", "generated tokens"),
    Family("vllm:request_success_total", "counter", "answers by how they ended", ("finished_reason", "model_name")),
    Family("vllm:time_to_first_token_seconds", "histogram", "from the request to its first token", _MODEL, FIRST),
    Family("vllm:inter_token_latency_seconds", "histogram", "between two tokens", _MODEL, GAPS),
    Family(
        "vllm:request_time_per_output_token_seconds", "histogram", "mean after the first, per request", _MODEL, GAPS
    ),
    Family("vllm:e2e_request_latency_seconds", "histogram", "from the request to its end", _MODEL, WHOLE),
    Family("vllm:request_decode_time_seconds", "histogram", "from the first token to the end", _MODEL, WHOLE),
    Family("vllm:request_prompt_tokens", "histogram", "prompt tokens of a request", _MODEL, TOKENS),
    Family("vllm:request_generation_tokens", "histogram", "generated tokens of a request", _MODEL, TOKENS),
    Family(
        "lean_ovms_requests_total",
        "counter",
        f"all requests by route and status; {CLIENT_LEFT}: the client left",
        ("path", "method", "status"),
    ),
    Family("lean_ovms_request_seconds", "histogram", "from a request to its last byte", ("path",), SECONDS),
    Family(
        "lean_ovms_request_errors_total",
        "counter",
        "errors by code, those of grammars and in streams included",
        ("code", "model_name"),
    ),
    Family("lean_ovms_cancellations_total", "counter", "generations whose client left or whose time was up"),
    Family("lean_ovms_structured_output_not_imposed_total", "counter", "generations without the form asked for"),
    Family("lean_ovms_engine_up", "gauge", "1 while the model's engine serves"),
    Family("lean_ovms_engine_restarts_total", "counter", "engine children started after the first"),
    Family("lean_ovms_engine_steps_total", "counter", "steps of the engine since it started"),
    Family("lean_ovms_engine_recoveries_total", "counter", "failures that the engine survived since it started"),
    Family("lean_ovms_engine_resident_memory_bytes", "gauge", "memory of the engine child"),
)
PROCESS = ("process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total")
"""Of the front end; prometheus_client has them, and a few more of the kind."""
CLASSIC = (
    "ovms_requests_success",
    "ovms_requests_fail",
    "ovms_request_time_us",
    "ovms_streams",
    "ovms_current_requests",
    "ovms_inference_time_us",
    "ovms_wait_for_infer_req_time_us",
    "ovms_infer_req_queue_size",
    "ovms_infer_req_active",
    "ovms_graph_request_latency_us",
)
"""OVMS's names without a meaning for generative models: OVMS does not feed them either. May be listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """One model at the time of a scrape. stats: None while its engine does not answer. memory: of the child, bytes."""

    model: str
    in_flight: int
    up: bool
    restarts: int
    memory: int | None
    stats: EngineStats | None


class TokenTimer:
    """The gaps between one generation's tokens, counted where they come, added to the histogram when it is over."""

    __slots__ = ("_last", "counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(GAPS) + 1)
        self.total = 0.0
        self._last = 0.0

    def tokens(self, count: int) -> None:
        """So many tokens of an answer have come together; those of an assisted step share its time."""
        now = time.monotonic()
        if self._last:
            gap = now - self._last
            self.counts[bisect_left(GAPS, gap / count)] += count
            self.total += gap
        self._last = now


class Metrics:
    """What can be observed; does nothing."""

    enabled = False

    def exchange(self, note: RequestRecord) -> None:
        """An exchange ended."""

    def pace(self) -> TokenTimer | None:
        """What counts the gaps of a new generation; None if nobody wants to know."""
        return None

    def generation(self, model: str, course: GenerationRecord, pace: TokenTimer | None) -> None:
        """A generation ended."""

    def not_imposed(self, model: str) -> None:
        """A generation runs without all of the form that was asked for."""

    def expose(self, engines: Iterable[EngineState] = ()) -> bytes:
        """All metrics in Prometheus' text format."""
        return b""


@dataclass(slots=True)
class Distribution:
    """A histogram's numbers: how often each bucket was hit, the last one being beyond all bounds."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, counts: Iterable[int], total: float) -> None:
        self.counts = [mine + new for mine, new in zip(self.counts, counts, strict=True)]
        self.total += total


class Prometheus(Metrics):
    """Counts. listed: names of families, separated by commas; empty: all. Raises StartError for a name unknown."""

    enabled = True

    def __init__(self, listed: str = "") -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector

        self._families = {with_adapters.name: with_adapters for with_adapters in chosen(listed)}
        self._values: dict[str, dict[tuple[str, ...], Any]] = {name: {} for name in self._families}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        if not listed or any(name in listed for name in PROCESS):
            ProcessCollector(registry=self._registry)

    def exchange(self, note: RequestRecord) -> None:
        path = note.route or "other"
        method = note.method if note.route else "other"
        self._add("lean_ovms_requests_total", (path, method, str(note.status)))
        self._observe("lean_ovms_request_seconds", (path,), note.seconds)
        if not note.model:
            return
        method, name = METHODS[note.stream], note.model
        labels = ("V3", "REST", method, name)
        if note.error:
            self._add("lean_ovms_request_errors_total", (note.error, name))
        if note.status in (429, 503):
            self._add("ovms_requests_rejected", labels)
            return
        self._add("ovms_requests_accepted", labels)
        if note.error:
            self._add("ovms_graph_error", labels)
        self._add("ovms_responses", labels, note.pieces)
        self._observe("ovms_graph_processing_time_us", (method, name), note.seconds * 1e6)

    def pace(self) -> TokenTimer | None:
        return TokenTimer() if "vllm:inter_token_latency_seconds" in self._families else None

    def generation(self, model: str, course: GenerationRecord, pace: TokenTimer | None) -> None:
        labels = (model,)
        self._add("vllm:prompt_tokens_total", labels, course.prompt_tokens)
        self._add("vllm:generation_tokens_total", labels, course.completion_tokens)
        self._observe("vllm:request_prompt_tokens", labels, course.prompt_tokens)
        self._observe("vllm:request_generation_tokens", labels, course.completion_tokens)
        self._observe("vllm:e2e_request_latency_seconds", labels, course.seconds)
        if course.cached_tokens is not None:
            self._add("vllm:prefix_cache_queries_total", labels, course.prompt_tokens)
            self._add("vllm:prefix_cache_hits_total", labels, course.cached_tokens)
        for finish in course.finishes:
            self._add("vllm:request_success_total", (finish, model))
        if "abort" in course.finishes:
            self._add("lean_ovms_cancellations_total", labels)
        if course.ttft_s is not None:
            self._observe("vllm:time_to_first_token_seconds", labels, course.ttft_s)
            self._observe("vllm:request_decode_time_seconds", labels, course.decode_s)
            answers = len(course.finishes)
            if course.completion_tokens > answers:
                mean = course.decode_s / (course.completion_tokens / answers - 1)
                self._observe("vllm:request_time_per_output_token_seconds", labels, mean)
        if pace is not None:
            self._distribution("vllm:inter_token_latency_seconds", labels).add(pace.counts, pace.total)

    def not_imposed(self, model: str) -> None:
        self._add("lean_ovms_structured_output_not_imposed_total", (model,))

    def expose(self, engines: Iterable[EngineState] = ()) -> bytes:
        from prometheus_client import generate_latest

        for name, with_adapters in self._families.items():
            if with_adapters.kind == "gauge":
                self._values[name].clear()
        for engine in engines:
            self._begin(engine.model)
            self._engine(engine)
        # OVMS's counters have no suffix; prometheus_client gives every counter one.
        return re.sub(rb"\b(ovms_\w+)_total\b", rb"\1", generate_latest(self._registry))

    def collect(self) -> Iterator[Metric]:
        """For prometheus_client: all families as they are now."""
        from prometheus_client import core

        made = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
        for name, with_adapters in self._families.items():
            if with_adapters.kind == "histogram":
                yield self._histogram(
                    core.HistogramMetricFamily(name, with_adapters.help, labels=with_adapters.labels), with_adapters
                )
                continue
            shown = made[with_adapters.kind](name, with_adapters.help, labels=with_adapters.labels)
            for labels, value in self._values[name].items():
                shown.add_metric(labels, value)
            yield shown

    def _histogram(self, shown: Any, with_adapters: Family) -> Metric:
        for labels, distribution in self._values[with_adapters.name].items():
            sums = list(accumulate(distribution.counts))
            bounds = [f"{bound:g}" if bound < 1e6 else f"{bound:.0f}" for bound in with_adapters.buckets]
            shown.add_metric(labels, list(zip([*bounds, "+Inf"], sums, strict=True)), distribution.total)
        metric: Metric = shown
        return metric

    def _engine(self, engine: EngineState) -> None:
        labels = (engine.model,)
        self._set("ovms_current_graphs", labels, engine.in_flight)
        self._set("lean_ovms_engine_up", labels, engine.up)
        self._set("lean_ovms_engine_restarts_total", labels, engine.restarts)
        if engine.memory is not None:
            self._set("lean_ovms_engine_resident_memory_bytes", labels, engine.memory)
        if (stats := engine.stats) is None:
            return
        self._set("vllm:num_requests_running", labels, stats.running)
        self._set("vllm:num_requests_waiting", labels, stats.queued)
        self._set("vllm:kv_cache_usage_perc", labels, stats.kv_blocks_used / max(stats.kv_blocks_total, 1))
        self._set("vllm:num_preemptions_total", labels, stats.preemptions)
        self._set("vllm:spec_decode_num_drafts_total", labels, stats.drafts)
        self._set("vllm:spec_decode_num_accepted_tokens_total", labels, stats.accepted)
        self._set("lean_ovms_engine_steps_total", labels, stats.steps)
        self._set("lean_ovms_engine_recoveries_total", labels, stats.recoveries)

    def _begin(self, model: str) -> None:
        """A served model's series exist before anything has happened, or its first events would not show in a rate."""
        for name, with_adapters in self._families.items():
            if with_adapters.kind == "gauge":
                continue
            for labels in _expected(with_adapters.labels, model):
                if with_adapters.kind == "histogram":
                    self._distribution(name, labels)
                else:
                    self._values[name].setdefault(labels, 0)

    def _add(self, name: str, labels: tuple[str, ...], amount: float = 1) -> None:
        values = self._values.get(name)
        if values is not None:
            values[labels] = values.get(labels, 0) + amount

    def _set(self, name: str, labels: tuple[str, ...], value: float) -> None:
        if name in self._values:
            self._values[name][labels] = value

    def _observe(self, name: str, labels: tuple[str, ...], value: float) -> None:
        if name in self._values:
            self._distribution(name, labels).observe(value)

    def _distribution(self, name: str, labels: tuple[str, ...]) -> Distribution:
        values = self._values[name]
        found: Distribution | None = values.get(labels)
        if found is None:
            found = values[labels] = Distribution(self._families[name].buckets)
        return found


def _expected(labels: tuple[str, ...], model: str) -> list[tuple[str, ...]]:
    """Label values that a model will have; none where they are not known before."""
    expected: dict[tuple[str, ...], list[tuple[str, ...]]] = {
        _MODEL: [(model,)],
        _OVMS: [("V3", "REST", method, model) for method in METHODS],
        ("method", "name"): [(method, model) for method in METHODS],
        ("finished_reason", "model_name"): [(finish, model) for finish in FINISHES],
    }
    return expected.get(labels, [])


def chosen(listed: str) -> list[Family]:
    """The families of a list of names, separated by commas; all of an empty one. Raises StartError."""
    if not listed:
        return list(FAMILIES)
    names = {name.strip() for name in listed.split(",") if name.strip()}
    known = {
        name: with_adapters
        for with_adapters in FAMILIES
        for name in (with_adapters.name, with_adapters.name.removesuffix("_total"))
    }
    unknown = sorted(names - set(known) - set(CLASSIC) - set(PROCESS))
    if unknown:
        raise StartError(f"--metrics_list has unknown metrics: {', '.join(unknown)}")
    return [
        with_adapters
        for with_adapters in FAMILIES
        if {with_adapters.name, with_adapters.name.removesuffix("_total")} & names
    ]
