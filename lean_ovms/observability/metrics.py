"""Where metrics are observed: into plain numbers, which exposition.py prints. families.py lists the metrics.

It is counted when a request has finished (api) and when a generation has finished (models): 1.2 us and 3 us; a step of
a stream costs 0.2 us, for its inter-token latency. A server without --metrics_enable counts nothing.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..manifest import Metric
from ..types.engine import EngineStats, ModelInfo
from . import process_stats
from .exposition import Exposition, Histogram
from .families import HIDDEN, ITL_BUCKETS, METHODS, PROCESS, initial_labels, select
from .records import GenerationRecord, RequestRecord

Sample = tuple[str, tuple[str, ...], float]
"""The name of a metric, its labels and its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """One model at the time of a scrape. stats: None while its engine does not answer. memory: of the child, bytes. up:
    requests are served. loaded: the model is in memory. waiting: requests that wait until it is. info: of the model in
    memory. loras: of a model that may have adapters: their number in memory at most, and the names of those with
    requests that run, and with requests that wait, as labels."""

    model: str
    in_flight: int
    up: bool
    restarts: int
    memory: int | None
    stats: EngineStats | None
    loaded: bool = True
    waiting: int = 0
    info: ModelInfo | None = None
    loras: tuple[str, str, str] | None = None


class TokenTimer:
    """The inter-token latencies of one generation, counted as tokens arrive and added to the histogram at its end."""

    __slots__ = ("_last", "counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(ITL_BUCKETS) + 1)
        self.total = 0.0
        self._last = 0.0

    def observe(self, count: int) -> None:
        """Observes `count` tokens of a choice that arrived now; those of one speculative step share its time
        equally."""
        now = time.monotonic()
        if self._last:
            gap = now - self._last
            self.counts[bisect_left(ITL_BUCKETS, gap / count)] += count
            self.total += gap
        self._last = now


class Metrics:
    """Counts events."""

    def __init__(self, listed: str | None = None, *, hidden: bool = False, of_features: Sequence[Metric] = ()) -> None:
        """Makes an empty value for each metric that is served.

        Args:
            listed: comma-separated names of families; empty: all; None: nothing is counted.
            hidden: whether families have their older names, too.
            of_features: the families of the features, besides those of the core.

        Raises:
            StartError: for a name that is unknown.
        """
        self.enabled = listed is not None
        chosen = select(listed, of_features) if listed is not None else []
        self._families = {family.name: family for family in chosen}
        self._process = listed is not None and (not listed or any(name in listed for name in PROCESS))
        shown = [*self._families.values(), *(process_stats.FAMILIES if self._process else ())]
        self._values: dict[str, dict[tuple[str, ...], Any]] = {family.name: {} for family in shown}
        self._texts = [(family.name, Exposition(family)) for family in shown]
        older = [(old, self._families[new]) for old, new in HIDDEN.items() if hidden and new in self._families]
        self._texts += [(family.name, Exposition(replace(family, name=old))) for old, family in older]
        self._created: set[str] = set()  # models whose series exist
        counted = (family.name for family in of_features if family.kind == "gauge" and not family.labels)
        self._sampled: set[str] = set()
        self._levels = {name: 0 for name in counted if name in self._families}

    def request_finished(self, record: RequestRecord) -> None:
        """Observes that the response of a request is closed."""
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
        if record.status in (429, 503):
            self.add("ovms_requests_rejected", labels)
            return
        self.add("ovms_requests_accepted", labels)
        if record.error:
            self.add("ovms_graph_error", labels)
        self.add("ovms_responses", labels, record.chunks)
        self.observe("ovms_graph_processing_time_us", (method, name), record.seconds * 1e6)

    def token_timer(self) -> TokenTimer | None:
        """Returns a timer for a new generation; None if inter-token latency is not exposed."""
        return TokenTimer() if "vllm:inter_token_latency_seconds" in self._families else None

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
        if timer is not None:
            self._histogram("vllm:inter_token_latency_seconds", labels).add(timer.counts, timer.total)

    def constraint_relaxed(self, model: str) -> None:
        """Observes that a generation runs without all of the structured output of its request."""
        self.add("lean_ovms_structured_output_not_imposed_total", (model,))

    def model_loaded(self, model: str, seconds: float) -> None:
        """Observes that a model has been loaded, which took this time."""
        self.observe("lean_ovms_model_load_seconds", (model,), seconds)

    def model_unloaded(self, model: str) -> None:
        """Observes that a model has been unloaded, to be loaded again by a request."""
        self.add("lean_ovms_model_unloads_total", (model,))

    def change(self, name: str, by: int) -> None:
        """Adds to a gauge without labels, which a feature counts up and down."""
        if name in self._levels:
            self._levels[name] += by

    def expose(self, engines: Iterable[EngineState] = (), samples: Iterable[Sample] = ()) -> bytes:
        """Returns all metrics in Prometheus' text format.

        Args:
            engines: the models, whose gauges are set.
            samples: all values of metrics that are counted elsewhere.

        Returns:
            The text as bytes.
        """
        for name, family in self._families.items():
            if family.kind == "gauge":
                self._values[name].clear()
        for name, level in self._levels.items():
            self._set(name, (), level)
        for engine in engines:
            self._create_series(engine.model)
            self._set_engine(engine)
        for name in self._values.keys() & self._sampled:
            self._values[name].clear()
        for name, labels, value in samples:
            self._sampled.add(name)
            self._set(name, labels, value)
        if self._process:
            for name, value in process_stats.read().items():
                self._values[name] = {(): value}
        return "".join([text.text(self._values[name]) for name, text in self._texts]).encode()

    def summed(self, name: str) -> float | dict[str, Any] | None:
        """Returns a counter, or the bounds and counts of a histogram, over all labels; None: it is not counted."""
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
        if engine.loras is not None:
            self._set("vllm:lora_requests_info", (engine.model, *engine.loras), time.time())
        if (stats := engine.stats) is None:
            return
        self._set("vllm:num_requests_running", labels, stats.running)
        self._set("vllm:num_requests_waiting", labels, stats.queued)
        self._set("vllm:kv_cache_usage_perc", labels, stats.kv_blocks_used / max(stats.kv_blocks_total, 1))
        self._set("lean_ovms_sequence_state_bytes", labels, stats.state_bytes)
        self._set("vllm:num_preemptions_total", labels, stats.preemptions)
        if stats.speculative:
            self._set_spec_decode(labels, stats)
        for name, value in stats.of_features.items():
            self._set(name, labels, value)
        self._set("lean_ovms_engine_steps_total", labels, stats.steps)
        self._set("lean_ovms_engine_recoveries_total", labels, stats.recoveries)

    def _set_spec_decode(self, labels: tuple[str, ...], stats: EngineStats) -> None:
        self._set("vllm:spec_decode_num_drafts_total", labels, stats.drafts)
        if stats.drafted is not None:
            self._set("vllm:spec_decode_num_draft_tokens_total", labels, stats.drafted)
        self._set("vllm:spec_decode_num_accepted_tokens_total", labels, stats.accepted)
        for position, accepted in enumerate(stats.accepted_by_position):
            self._set("vllm:spec_decode_num_accepted_tokens_per_pos_total", (*labels, str(position)), accepted)

    def _create_series(self, model: str) -> None:
        """Creates a served model's series before its first event, which would else not show in a rate."""
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
        """Adds to a counter, if it is served."""
        values = self._values.get(name)
        if values is not None:
            values[labels] = values.get(labels, 0) + amount

    def _set(self, name: str, labels: tuple[str, ...], value: float) -> None:
        if name in self._values:
            self._values[name][labels] = value

    def observe(self, name: str, labels: tuple[str, ...], value: float) -> None:
        """Adds a value to a histogram, if it is served."""
        if name in self._values:
            self._histogram(name, labels).observe(value)

    def _histogram(self, name: str, labels: tuple[str, ...]) -> Histogram:
        values = self._values[name]
        found: Histogram | None = values.get(labels)
        if found is None:
            found = values[labels] = Histogram(self._families[name].buckets)
        return found
