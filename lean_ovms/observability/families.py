"""Every metric, each one once, as a row: name, kind, help, labels and buckets. metrics.py observes them.

Names and labels are OVMS's where it has the metric
(https://github.com/openvinotoolkit/model_server/blob/main/docs/metrics.md), else vLLM's, else our own. Label
values come from our own tables, never from a client, so their number is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import StartError
from ..manifest import SECONDS_BUCKETS as SECONDS
from ..manifest import Metric
from .records import CLIENT_LEFT

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
E2E_BUCKETS = (
    *(0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5),
    *(10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920),
)
"""vLLM's buckets for whole requests, and finer ones."""
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
MICROSECONDS = tuple(float(int(10 * 1.8**i)) for i in range(33))
"""OVMS's buckets."""

METHODS = ("Unary", "Stream")
FINISH_REASONS = ("stop", "length", "abort", "error")
_OVMS = ("api", "interface", "method", "name")
_MODEL = ("model_name",)


HIDDEN = {
    "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
    "vllm:gpu_prefix_cache_queries_total": "vllm:prefix_cache_queries_total",
    "vllm:gpu_prefix_cache_hits_total": "vllm:prefix_cache_hits_total",
}
"""Names that families had in older versions of vLLM."""
FAMILIES = (
    Metric("ovms_requests_accepted", "counter", "accepted requests to a model", _OVMS),
    Metric("ovms_requests_rejected", "counter", "requests refused because of load, or of a model not ready", _OVMS),
    Metric("ovms_graph_error", "counter", "requests that ended with an error", _OVMS),
    Metric("ovms_responses", "counter", "whole responses, and chunks of streams", _OVMS),
    Metric("ovms_current_graphs", "gauge", "requests being served", ("name",)),
    Metric("ovms_graph_loaded", "gauge", "1 while the model is in memory", ("name",)),
    Metric("ovms_graph_processing_time_us", "histogram", "time of a request", ("method", "name"), MICROSECONDS),
    Metric("vllm:num_requests_running", "gauge", "sequences in the engine's batch"),
    Metric("vllm:num_requests_waiting", "gauge", "sequences waiting for the engine"),
    Metric("vllm:kv_cache_usage_perc", "gauge", "share of the KV cache that running sequences hold, 0 to 1"),
    Metric(
        "vllm:cache_config_info",
        "gauge",
        "1, with the form of the KV cache as labels",
        ("model_name", "block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching"),
    ),
    Metric("vllm:num_preemptions_total", "counter", "sequences preempted for KV cache, or for another client"),
    Metric("vllm:prefix_cache_queries_total", "counter", "prompt tokens looked up in the prefix cache"),
    Metric("vllm:prefix_cache_hits_total", "counter", "prompt tokens found in the prefix cache"),
    Metric("vllm:prompt_tokens_total", "counter", "prompt tokens"),
    Metric("vllm:generation_tokens_total", "counter", "generated tokens"),
    Metric("vllm:request_success_total", "counter", "choices by finish reason", ("finished_reason", "model_name")),
    Metric(
        "vllm:time_to_first_token_seconds", "histogram", "from the request to its first token", _MODEL, TTFT_BUCKETS
    ),
    Metric("vllm:inter_token_latency_seconds", "histogram", "between two tokens", _MODEL, ITL_BUCKETS),
    Metric(
        "vllm:request_time_per_output_token_seconds",
        "histogram",
        "mean time per token after the first, per request",
        _MODEL,
        ITL_BUCKETS,
    ),
    Metric("vllm:e2e_request_latency_seconds", "histogram", "from the request to its end", _MODEL, E2E_BUCKETS),
    Metric("vllm:request_queue_time_seconds", "histogram", "from the request to its prefill", _MODEL, E2E_BUCKETS),
    Metric("vllm:request_prefill_time_seconds", "histogram", "from then to the first token", _MODEL, E2E_BUCKETS),
    Metric("vllm:request_decode_time_seconds", "histogram", "from the first token to the end", _MODEL, E2E_BUCKETS),
    Metric("vllm:request_inference_time_seconds", "histogram", "prefill and decoding", _MODEL, E2E_BUCKETS),
    Metric("vllm:request_prompt_tokens", "histogram", "prompt tokens of a request", _MODEL, TOKENS),
    Metric("vllm:request_generation_tokens", "histogram", "generated tokens of a request", _MODEL, TOKENS),
    Metric(
        "lean_ovms_requests_total",
        "counter",
        f"all requests by route and status; {CLIENT_LEFT}: the client left",
        ("path", "method", "status"),
    ),
    Metric("lean_ovms_request_seconds", "histogram", "from a request to its last byte", ("path",), SECONDS),
    Metric(
        "lean_ovms_request_errors_total",
        "counter",
        "errors by code, rejections and those of grammars and in streams included; without a model its name is empty",
        ("code", "model_name"),
    ),
    Metric("lean_ovms_cancellations_total", "counter", "generations cancelled by the client or by a time limit"),
    Metric(
        "lean_ovms_structured_output_not_imposed_total",
        "counter",
        "generations without all of the structured output of their requests",
    ),
    Metric("lean_ovms_engine_up", "gauge", "1 while requests for the model are served, if need be after a load"),
    Metric("lean_ovms_model_load_seconds", "histogram", "time to load the model; its count: loads", _MODEL, SECONDS),
    Metric("lean_ovms_model_unloads_total", "counter", "times the model was unloaded, to be loaded by a request"),
    Metric("lean_ovms_model_waiting_requests", "gauge", "requests that wait until the model is loaded"),
    Metric("lean_ovms_engine_restarts_total", "counter", "engine children started after the first"),
    Metric(
        "lean_ovms_engine_steps_total",
        "counter",
        "steps of the engine since it started, of an image its steps and decoding",
    ),
    Metric("lean_ovms_engine_recoveries_total", "counter", "failures that the engine survived since it started"),
    Metric("lean_ovms_sequence_state_bytes", "gauge", "memory of running sequences' states, of hybrid models"),
    Metric("lean_ovms_engine_resident_memory_bytes", "gauge", "memory of the engine child"),
)
PROCESS = ("process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total")
"""Metrics of the front end; metrics.py has a few more of the kind, all or none of which are exposed."""
UNUSED = (
    *("ovms_requests_success", "ovms_requests_fail", "ovms_request_time_us", "ovms_graph_request_latency_us"),
    *("ovms_streams", "ovms_current_requests", "ovms_inference_time_us", "ovms_wait_for_infer_req_time_us"),
    *("ovms_infer_req_queue_size", "ovms_infer_req_active"),
)
"""OVMS's names without a meaning for generative models: OVMS never sets them either. --metrics_list accepts them."""


def select(listed: str, of_features: Sequence[Metric] = ()) -> list[Metric]:
    """Returns the families of a comma-separated list of names; all of an empty one. Raises StartError.

    of_features: the families of the features, besides those of the core.
    """
    families = [*FAMILIES, *of_features]
    if not listed:
        return families
    names = {name.strip() for name in listed.split(",") if name.strip()}
    known = {name for family in families for name in _names(family)}
    unknown = sorted(names - known - set(UNUSED) - set(PROCESS))
    if unknown:
        raise StartError(f"--metrics_list has unknown metrics: {', '.join(unknown)} (docs/operations.md lists them)")
    return [family for family in families if _names(family) & names]


def _names(family: Metric) -> set[str]:
    return {family.name, family.name.removesuffix("_total")}


def initial_labels(family: Metric, model: str) -> list[tuple[str, ...]]:
    """Returns the label values that a model will have; none where they are not known in advance."""
    if not family.from_start:
        return []
    known: dict[tuple[str, ...], list[tuple[str, ...]]] = {
        _MODEL: [(model,)],
        _OVMS: [("V3", "REST", method, model) for method in METHODS],
        ("method", "name"): [(method, model) for method in METHODS],
        ("finished_reason", "model_name"): [(reason, model) for reason in FINISH_REASONS],
    }
    return known.get(family.labels, [])
