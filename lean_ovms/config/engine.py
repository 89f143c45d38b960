"""Options of the process that computes a model: device, memory, scheduling, queue, grammars."""

from __future__ import annotations

from dataclasses import dataclass

from .options import Options, option


@dataclass(frozen=True, kw_only=True)
class EngineOptions(Options):
    """What the engine process of a model needs besides ModelOptions."""

    # --- engine
    num_streams: int = option(
        0,
        "batches of a pooling model, or texts of a text-to-speech model, computed in parallel; 0: one, but a small"
        " pooling model on a CPU computes one for each thread while many texts wait",
        group="engine",
        low=0,
        high=256,
    )
    pooling_batch_tokens: int = option(
        1024, "tokens in one batch of a pooling model, padding included", group="engine", low=16, high=1 << 20
    )
    pipeline_type: str = option(
        "AUTO",
        "PAGED: the paged engine, for text models on the CPU; LM_CB, VLM_CB: openvino-genai's continuous batching;"
        " LM, VLM: openvino-genai, one request at a time; ASR: openvino-genai's speech recognition; AUTO: chosen "
        "by model, device and options",
        group="engine",
        choices=("AUTO", "LM", "LM_CB", "VLM", "VLM_CB", "PAGED", "ASR"),
    )
    target_device: str = option(
        "CPU",
        "OpenVINO device, such as GPU, AUTO:... or HETERO:...; auto: the best GPU, or the CPU without one",
        group="engine",
    )
    plugin_config: str = option("", "OpenVINO properties as a JSON object", group="engine", json_object=True)
    cache_size: int = option(0, "size of the KV cache in GB; 0: set by cache_memory_percent", group="engine", low=0)
    cache_memory_percent: int = option(
        25,
        "size of the KV cache as a percentage of the memory that is free at the start; allocated as needed, and "
        "shared if there are several models",
        group="engine",
        low=1,
        high=90,
    )
    kv_cache_precision: str = option(
        "", "precision of the KV cache (u8, f16, f32); empty: the device's default", group="engine"
    )
    max_num_batched_tokens: int = option(
        256, "tokens computed in one step; fewer make the time between tokens steadier", group="engine", low=1
    )
    max_num_seqs: int = option(256, "sequences that run at once; others wait", group="engine", low=1, high=4096)
    priority_across_clients: bool = option(
        False,
        "let the priority of a request count against other clients' requests, too; off: only among those of one client",
        group="engine",
    )
    dynamic_split_fuse: bool = option(True, "split long prompts over several steps", group="engine")
    enable_prefix_caching: bool = option(True, "reuse the KV cache of prompts that begin alike", group="engine")
    cache_eviction_config: str = option(
        "", "KV cache eviction as a JSON object; empty: off", group="engine", json_object=True
    )
    sparse_attention_config: str = option(
        "", "sparse attention as a JSON object; empty: off", group="engine", json_object=True
    )
    cache_interval_multiplier: int = option(
        0, "KV blocks between checkpoints of a linear attention state; 0: GenAI's default", group="engine", low=0
    )
    max_prompt_len: int = option(
        0, "prompt length in tokens that an NPU is compiled for; 0: 1024", group="engine", low=0
    )
    model_distribution_policy: str = option(
        "",
        "how to distribute the model over several devices",
        group="engine",
        choices=("", "TENSOR_PARALLEL", "PIPELINE_PARALLEL"),
    )
    cache_dir: str = option("", "directory to keep compiled models in, which then load faster", group="engine")
    draft_model_path: str = option("", "directory of a draft model for speculative decoding", group="engine")
    draft_device: str = option("", "device of the draft model; empty: target_device", group="engine")
    draft_cache_size: int = option(
        0, "size of the draft model's KV cache in GB; 0: chosen by the engine", group="engine", low=0
    )
    draft_max_num_batched_tokens: int = option(
        0, "tokens that the draft model computes in one step; 0: as the model", group="engine", low=0
    )
    draft_max_num_seqs: int = option(
        0, "sequences of the draft model that run at once; 0: as the model", group="engine", low=0, high=4096
    )
    draft_eagle3_mode: bool = option(False, "the draft model is an Eagle3 head of the model", group="engine")
    prompt_lookup: bool = option(False, "speculative decoding by prompt lookup", group="engine")
    engine_watchdog_s: float = option(
        120.0, "restart a busy engine after this many seconds without a sign of life", group="engine", low=1
    )
    engine_load_timeout_s: float = option(
        600.0, "give up loading a model after this many seconds", group="engine", low=1
    )
    fake_engine: bool = option(False, "scripted engine instead of a model, for tests and benchmarks", group="engine")

    # --- limits
    max_queued_requests: int = option(256, "requests waiting for the engine; more: 429", group="limits", low=1)
    max_queued_requests_per_client: int = option(
        128, "requests of one client waiting for the engine; more: 429", group="limits", low=1
    )
    max_queued_tokens_per_client: int = option(
        1 << 20,
        "prompt tokens of one client's waiting requests; more: 429. A single request with more is a 400",
        group="limits",
        low=1,
    )
    max_sequences_per_request: int = option(
        512, "prompts of a request, times its n; more: 400", group="limits", low=1, high=1 << 17
    )
    max_pooling_tokens: int = option(
        300_000,
        "tokens of all inputs of one embeddings, rerank, score or classification request; more: 400",
        group="limits",
        low=1,
    )
    grammar_timeout_s: float = option(
        2.0,
        "seconds of CPU time to compile a client's grammar or schema; more: 400",
        group="limits",
        low=0.05,
        high=600,
    )
    grammar_memory_mb: int = option(512, "memory in MB to compile a grammar or schema", group="limits", low=32)
    grammar_cache_mb: int = option(
        256, "memory in MB for compiled grammars; all are dropped when it is full", group="limits", low=1
    )
    grammar_max_bytes: int = option(65536, "bytes of a grammar or schema", group="limits", low=64)
    grammar_max_nesting: int = option(64, "nesting depth of a grammar or schema", group="limits", low=4, high=256)

    # --- behaviour
    structured_output_backend: str = option(
        "auto",
        "library that matches grammars: guidance only with PAGED; xgrammar with every pipeline, with PAGED if the "
        "package xgrammar is installed; auto: guidance with PAGED, else xgrammar",
        group="behaviour",
        choices=("auto", "guidance", "xgrammar"),
    )
    log_path: str = option("", "file for a copy of the log", group="behaviour")
    log_format: str = option("text", "format of log lines", group="behaviour", choices=("text", "json"))
    log_level: str = option(
        "INFO", "log level", group="behaviour", choices=("TRACE", "DEBUG", "INFO", "WARNING", "ERROR")
    )

    @property
    def streams(self) -> int:
        """What is computed at once where num_streams leaves it open: one."""
        return max(1, self.num_streams)
