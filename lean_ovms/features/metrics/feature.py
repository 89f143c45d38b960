"""The manifest of the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ...config.options import Options, option
from ...errors import CLIENT_LEFT, StartError
from ...manifest import METRICS, SECONDS_BUCKETS, Feature, Metric, PartRow, Route

_option = partial(option, group="behaviour")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class MetricOptions(Options):
    """The options for serving metrics, and for selecting them."""

    metrics_enable: bool = _option(False, "serve Prometheus metrics at /metrics", common=True)
    metrics_list: str = _option(
        "", "names of the metrics to serve, separated by commas (docs/operations.md lists them); all if empty"
    )
    show_hidden_metrics_for_version: str = _option(
        "",
        "vLLM's option: any version, such as 0.9, also serves metrics under their older names: "
        "vllm:gpu_cache_usage_perc, vllm:gpu_prefix_cache_queries_total, vllm:gpu_prefix_cache_hits_total",
    )

    def check(self, config: Any) -> None:
        """Raises StartError if metrics are selected, but metrics are not served."""
        if self.metrics_list and not self.metrics_enable:
            raise StartError("--metrics_list needs --metrics_enable")


TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640),
)
"""vLLM's buckets for the time to the first token."""
ITL_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 10, 40),
)
"""vLLM's buckets for the inter-token latency, and finer ones for small models."""
E2E_BUCKETS = (*(0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5), *(10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920))
"""vLLM's buckets for whole requests, and finer ones."""
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
MICROSECONDS = tuple(float(int(10 * 1.8**i)) for i in range(33))
"""OVMS's buckets."""

BY_CALL = ("api", "interface", "method", "name")
"""The labels of OVMS's counters."""
BY_MODEL = ("model_name",)
"""The label of what is counted for each model."""
FAMILIES = (
    Metric("ovms_requests_accepted", "counter", "accepted requests to a model", BY_CALL),
    Metric(
        "ovms_requests_rejected", "counter", "requests refused because of load or a model that was not ready", BY_CALL
    ),
    Metric("ovms_graph_error", "counter", "requests that ended with an error", BY_CALL),
    Metric("ovms_responses", "counter", "complete responses, and chunks of streams", BY_CALL),
    Metric("ovms_current_graphs", "gauge", "requests being served", ("name",)),
    Metric("ovms_graph_loaded", "gauge", "1 while the model is in memory", ("name",)),
    Metric("ovms_graph_processing_time_us", "histogram", "time of a request", ("method", "name"), MICROSECONDS),
    Metric("vllm:num_requests_running", "gauge", "sequences in the engine's batch"),
    Metric("vllm:num_requests_waiting", "gauge", "sequences waiting for the engine"),
    Metric("vllm:kv_cache_usage_perc", "gauge", "share of the KV cache that running sequences hold, 0 to 1"),
    Metric(
        "vllm:cache_config_info",
        "gauge",
        "1; its labels describe the KV cache",
        ("model_name", "block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching"),
    ),
    Metric("vllm:num_preemptions_total", "counter", "sequences preempted to free KV cache, or for another client"),
    Metric("vllm:prefix_cache_queries_total", "counter", "prompt tokens looked up in the prefix cache"),
    Metric("vllm:prefix_cache_hits_total", "counter", "prompt tokens found in the prefix cache"),
    Metric("vllm:prompt_tokens_total", "counter", "prompt tokens"),
    Metric("vllm:generation_tokens_total", "counter", "generated tokens"),
    Metric("vllm:request_success_total", "counter", "choices by finish reason", ("finished_reason", "model_name")),
    Metric("vllm:time_to_first_token_seconds", "histogram", "time to the first token", BY_MODEL, TTFT_BUCKETS),
    Metric("vllm:inter_token_latency_seconds", "histogram", "time between two tokens", BY_MODEL, ITL_BUCKETS),
    Metric(
        "vllm:request_time_per_output_token_seconds",
        "histogram",
        "mean time per token after the first, per request",
        BY_MODEL,
        ITL_BUCKETS,
    ),
    Metric("vllm:e2e_request_latency_seconds", "histogram", "time to the end", BY_MODEL, E2E_BUCKETS),
    Metric("vllm:request_queue_time_seconds", "histogram", "time to the prefill", BY_MODEL, E2E_BUCKETS),
    Metric(
        "vllm:request_prefill_time_seconds",
        "histogram",
        "time from the prefill to the first token",
        BY_MODEL,
        E2E_BUCKETS,
    ),
    Metric(
        "vllm:request_decode_time_seconds", "histogram", "time from the first token to the end", BY_MODEL, E2E_BUCKETS
    ),
    Metric("vllm:request_inference_time_seconds", "histogram", "time of prefill and decoding", BY_MODEL, E2E_BUCKETS),
    Metric("vllm:request_prompt_tokens", "histogram", "prompt tokens of a request", BY_MODEL, TOKENS),
    Metric("vllm:request_generation_tokens", "histogram", "generated tokens of a request", BY_MODEL, TOKENS),
    Metric(
        "lean_ovms_requests_total",
        "counter",
        f"all requests by route and status; {CLIENT_LEFT}: the client disconnected",
        ("path", "method", "status"),
    ),
    Metric(
        "lean_ovms_request_seconds", "histogram", "time to the last byte of the response", ("path",), SECONDS_BUCKETS
    ),
    Metric(
        "lean_ovms_request_errors_total",
        "counter",
        "errors by code, including rejections and errors in streams",
        ("code", "model_name"),
    ),
    Metric("lean_ovms_cancellations_total", "counter", "generations cancelled by the client or by a time limit"),
    Metric("lean_ovms_engine_up", "gauge", "1 while the model serves requests, possibly after loading"),
    Metric("lean_ovms_model_load_seconds", "histogram", "time to load the model", BY_MODEL, SECONDS_BUCKETS),
    Metric("lean_ovms_model_unloads_total", "counter", "times the model was unloaded until the next request"),
    Metric("lean_ovms_model_waiting_requests", "gauge", "requests that wait for the model to be loaded"),
    Metric("lean_ovms_engine_restarts_total", "counter", "restarts of the engine process"),
    Metric("lean_ovms_engine_steps_total", "counter", "steps of the engine since it started; for images also decoding"),
    Metric("lean_ovms_engine_recoveries_total", "counter", "failures that the engine survived since it started"),
    Metric("lean_ovms_sequence_state_bytes", "gauge", "memory of the states of running sequences, for hybrid models"),
    Metric("lean_ovms_engine_resident_memory_bytes", "gauge", "memory of the engine process"),
)

FEATURE = Feature(
    name="metrics",
    summary="counts requests, tokens and times, and serves Prometheus metrics",
    title="Metrics",
    reference="https://prometheus.io/docs/instrumenting/exposition_formats/",
    options=MetricOptions,
    flags="flags.txt",
    routes=(Route("GET", "/metrics", "api:handle", auth="metrics", vital=True),),
    metrics=FAMILIES,
    parts=(PartRow(seam=METRICS, make="counts:make", options=("metrics_enable",)),),
)
