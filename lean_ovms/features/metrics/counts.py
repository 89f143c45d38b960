"""Counts events, and shows the counts together with the numbers of the engines.

Names and labels are those of OVMS if it has the metric
(https://github.com/openvinotoolkit/model_server/blob/main/docs/metrics.md), else those of vLLM, else this server's own.
Values of labels come from tables, never from a client, so their number is bounded.

Metrics are plain numbers, which Exposition prints. Observing a finished request takes 1.2 us, a finished generation 3
us, and a step of a stream 0.2 us, for its inter-token latency.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...config import Config
from ...errors import StartError
from ...manifest import Metric
from ...observability.records import GenerationRecord, Metrics, RequestRecord, Sample, TokenTimer
from ...types.engine import EngineStats, ModelInfo
from .exposition import PROCESS_FAMILIES, Exposition, Histogram, process_values
from .feature import BY_CALL, BY_MODEL, ITL_BUCKETS, MetricOptions

REJECTED = (429, 503, 529)
"""The statuses of requests refused because of load or a model that is not ready; 529 is Anthropic's for 503."""
METHODS = ("Unary", "Stream")
FINISH_REASONS = ("stop", "length", "abort", "error")
HIDDEN = {
    "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
    "vllm:gpu_prefix_cache_queries_total": "vllm:prefix_cache_queries_total",
    "vllm:gpu_prefix_cache_hits_total": "vllm:prefix_cache_hits_total",
}
"""Names that families had in older versions of vLLM."""
PROCESS = ("process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total")
"""Metrics of the front end's process that --metrics_list may name. One of them selects all of PROCESS_FAMILIES."""
UNUSED = (
    *("ovms_requests_success", "ovms_requests_fail", "ovms_request_time_us", "ovms_graph_request_latency_us"),
    *("ovms_streams", "ovms_current_requests", "ovms_inference_time_us", "ovms_wait_for_infer_req_time_us"),
    *("ovms_infer_req_queue_size", "ovms_infer_req_active"),
)
"""OVMS's names without a meaning for generative models: OVMS never sets them either. --metrics_list accepts them."""


def select(families: Sequence[Metric], listed: str) -> list[Metric]:
    """Selects families by a comma-separated list of names, all if it is empty. Raises StartError if one is unknown."""
    if not listed:
        return list(families)
    names = {name.strip() for name in listed.split(",") if name.strip()}
    known = {name for family in families for name in _names(family)}
    unknown = sorted(names - known - set(UNUSED) - set(PROCESS))
    if unknown:
        raise StartError(f"--metrics_list has unknown metrics: {', '.join(unknown)} (docs/operations.md lists them)")
    return [family for family in families if _names(family) & names]


def _names(family: Metric) -> set[str]:
    return {family.name, family.name.removesuffix("_total")}


def initial_labels(family: Metric, model: str) -> list[tuple[str, ...]]:
    """Returns the label values that a model will have in a family, or [] if they are not known in advance."""
    if not family.from_start:
        return []
    known: dict[tuple[str, ...], list[tuple[str, ...]]] = {
        BY_MODEL: [(model,)],
        BY_CALL: [("V3", "REST", method, model) for method in METHODS],
        ("method", "name"): [(method, model) for method in METHODS],
        ("finished_reason", "model_name"): [(reason, model) for reason in FINISH_REASONS],
    }
    return known.get(family.labels, [])


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """The state of one model when metrics are asked for."""

    model: str
    """The name of the model."""
    in_flight: int
    """The number of requests for the model that are being served."""
    up: bool
    """Whether requests are served, if necessary after loading the model."""
    restarts: int
    """The number of engine processes that were started after the first one."""
    memory: int | None
    """The memory of the engine process in bytes; None if there is none."""
    stats: EngineStats | None
    """The engine's statistics; None if it does not answer."""
    loaded: bool = True
    """Whether the model is in memory."""
    waiting: int = 0
    """The number of requests that wait until the model is in memory."""
    info: ModelInfo | None = None
    """The description of the model, if it is in memory."""


class LatencyTimer(TokenTimer):
    """Measures the inter-token latencies of one generation, which are added to the histogram at its end."""

    __slots__ = ("_last", "counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(ITL_BUCKETS) + 1)
        self.total = 0.0
        self._last = 0.0

    def observe(self, count: int) -> None:
        """Observes that `count` tokens of a choice arrived now. Tokens of one speculative step share its time."""
        now = time.monotonic()
        if self._last:
            gap = now - self._last
            self.counts[bisect_left(ITL_BUCKETS, gap / count)] += count
            self.total += gap
        self._last = now


class PrometheusMetrics(Metrics):
    """Counts events for GET /metrics."""

    enabled = True

    def __init__(self, families: Sequence[Metric], listed: str = "", *, hidden: bool = False) -> None:
        """Makes an empty value for each metric that is served.

        Args:
            families: All families.
            listed: The comma-separated names of the families that are served; "" for all.
            hidden: Whether families are also shown under their older names.

        Raises:
            StartError: A name is unknown.
        """
        chosen = select(families, listed)
        self._families = {family.name: family for family in chosen}
        self._process = not listed or any(name in listed for name in PROCESS)
        shown = [*self._families.values(), *(PROCESS_FAMILIES if self._process else ())]
        self._values: dict[str, dict[tuple[str, ...], Any]] = {family.name: {} for family in shown}
        self._texts = [(family.name, Exposition(family)) for family in shown]
        older = [(old, self._families[new]) for old, new in HIDDEN.items() if hidden and new in self._families]
        self._texts += [(family.name, Exposition(replace(family, name=old))) for old, family in older]
        self._created: set[str] = set()  # the models whose series exist
        self._levels = {family.name: 0 for family in chosen if family.kind == "gauge" and not family.labels}

    def request_finished(self, record: RequestRecord) -> None:
        path = record.route or "other"
        method = record.method if record.route else "other"
        self.add("lean_ovms_requests_total", (path, method, str(record.status)))
        self.observe("lean_ovms_request_seconds", (path,), record.seconds)
        if record.error:
            self.add("lean_ovms_request_errors_total", (record.error, record.model))
        if not record.model:
            return
        method, name = METHODS[record.stream], record.model
        labels = ("V3", "REST", method, name)
        if record.status in REJECTED:
            self.add("ovms_requests_rejected", labels)
            return
        self.add("ovms_requests_accepted", labels)
        if record.error:
            self.add("ovms_graph_error", labels)
        self.add("ovms_responses", labels, record.chunks)
        self.observe("ovms_graph_processing_time_us", (method, name), record.seconds * 1e6)

    def token_timer(self) -> LatencyTimer | None:
        return LatencyTimer() if "vllm:inter_token_latency_seconds" in self._families else None

    def generation_finished(self, model: str, record: GenerationRecord, timer: TokenTimer | None) -> None:
        labels = (model,)
        self.add("vllm:prompt_tokens_total", labels, record.prompt_tokens)
        self.add("vllm:generation_tokens_total", labels, record.completion_tokens)
        self.observe("vllm:request_prompt_tokens", labels, record.prompt_tokens)
        self.observe("vllm:request_generation_tokens", labels, record.completion_tokens)
        self.observe("vllm:e2e_request_latency_seconds", labels, record.seconds)
        if record.cached_tokens is not None:
            self.add("vllm:prefix_cache_queries_total", labels, record.prompt_tokens)
            self.add("vllm:prefix_cache_hits_total", labels, record.cached_tokens)
        for reason in record.finish_reasons:
            self.add("vllm:request_success_total", (reason, model))
        if "abort" in record.finish_reasons:
            self.add("lean_ovms_cancellations_total", labels)
        if record.ttft_s is not None:
            self.observe("vllm:time_to_first_token_seconds", labels, record.ttft_s)
            for phase, seconds in record.phases.items():
                self.observe(f"vllm:request_{phase}_time_seconds", labels, seconds)
            choices = len(record.finish_reasons)
            if record.completion_tokens > choices:
                mean = record.decode_s / (record.completion_tokens / choices - 1)
                self.observe("vllm:request_time_per_output_token_seconds", labels, mean)
        if isinstance(timer, LatencyTimer):
            self._histogram("vllm:inter_token_latency_seconds", labels).add(timer.counts, timer.total)

    def model_loaded(self, model: str, seconds: float) -> None:
        self.observe("lean_ovms_model_load_seconds", (model,), seconds)

    def model_unloaded(self, model: str) -> None:
        self.add("lean_ovms_model_unloads_total", (model,))

    def change(self, name: str, by: int) -> None:
        if name in self._levels:
            self._levels[name] += by

    def expose(self, engines: Iterable[EngineState] = (), samples: Iterable[Sample] = ()) -> bytes:
        """Returns all metrics in Prometheus' text format, with gauges of engines, and the samples of features."""
        for name, family in self._families.items():
            if family.kind == "gauge" or not family.lasting:
                self._values[name].clear()
        for name, level in self._levels.items():
            self._set(name, (), level)
        for engine in engines:
            self._create_series(engine.model)
            self._set_engine(engine)
        for name, labels, value in samples:
            self._set(name, labels, value)
        if self._process:
            for name, value in process_values().items():
                self._values[name] = {(): value}
        return "".join([text.text(self._values[name]) for name, text in self._texts]).encode()

    def summed(self, name: str) -> float | dict[str, Any] | None:
        if (family := self._families.get(name)) is None:
            return None
        values = self._values[name].values()
        if family.kind != "histogram":
            return float(sum(values))
        total = Histogram(family.buckets)
        for one in values:
            total.add(one.counts, one.total)
        return {"bounds": family.buckets, "counts": total.counts}

    def _set_engine(self, engine: EngineState) -> None:
        labels = (engine.model,)
        self._set("ovms_current_graphs", labels, engine.in_flight)
        self._set("ovms_graph_loaded", labels, int(engine.loaded))
        self._set("lean_ovms_model_waiting_requests", labels, engine.waiting)
        self._set("lean_ovms_engine_up", labels, int(engine.up))
        self._set("lean_ovms_engine_restarts_total", labels, engine.restarts)
        if engine.memory is not None:
            self._set("lean_ovms_engine_resident_memory_bytes", labels, engine.memory)
        if (info := engine.info) is not None and info.kv_blocks:
            form = (info.block_size, info.kv_blocks, info.kv_precision, info.prefix_caching)
            self._set("vllm:cache_config_info", (engine.model, *map(str, form)), 1)
        if (stats := engine.stats) is None:
            return
        self._set("vllm:num_requests_running", labels, stats.running)
        self._set("vllm:num_requests_waiting", labels, stats.queued)
        self._set("vllm:kv_cache_usage_perc", labels, stats.kv_blocks_used / max(stats.kv_blocks_total, 1))
        self._set("lean_ovms_sequence_state_bytes", labels, stats.state_bytes)
        self._set("vllm:num_preemptions_total", labels, stats.preemptions)
        for name, value in stats.of_features.items():
            self._set(name, labels, value)
        self._set("lean_ovms_engine_steps_total", labels, stats.steps)
        self._set("lean_ovms_engine_recoveries_total", labels, stats.recoveries)

    def _create_series(self, model: str) -> None:
        """Creates the series of a served model before its first event, which a rate would otherwise not show."""
        if model in self._created:
            return
        self._created.add(model)
        for name, family in self._families.items():
            if family.kind == "gauge":
                continue
            for labels in initial_labels(family, model):
                if family.kind == "histogram":
                    self._histogram(name, labels)
                else:
                    self._values[name].setdefault(labels, 0)

    def add(self, name: str, labels: tuple[str, ...], amount: float = 1) -> None:
        values = self._values.get(name)
        if values is not None:
            values[labels] = values.get(labels, 0) + amount

    def _set(self, name: str, labels: tuple[str, ...], value: float) -> None:
        if name in self._values:
            self._values[name][labels] = value

    def observe(self, name: str, labels: tuple[str, ...], value: float) -> None:
        if name in self._values:
            self._histogram(name, labels).observe(value)

    def _histogram(self, name: str, labels: tuple[str, ...]) -> Histogram:
        values = self._values[name]
        found: Histogram | None = values.get(labels)
        if found is None:
            found = values[labels] = Histogram(self._families[name].buckets)
        return found


def make(config: Config) -> PrometheusMetrics:
    """Makes the metrics of a server. Raises StartError."""
    options = config.of(MetricOptions)
    hidden = bool(options.show_hidden_metrics_for_version)
    return PrometheusMetrics(config.composition.metrics, options.metrics_list, hidden=hidden)
