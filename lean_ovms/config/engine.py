"""Options of the process that computes a model: device, memory, scheduling, queue, grammars."""

from __future__ import annotations

from dataclasses import dataclass

from .options import Options, option

PROPERTIES = {
    "kv_cache_precision": "KV_CACHE_PRECISION",
    "key_cache_precision": "KEY_CACHE_PRECISION",
    "value_cache_precision": "VALUE_CACHE_PRECISION",
    "model_distribution_policy": "MODEL_DISTRIBUTION_POLICY",
    "cache_dir": "CACHE_DIR",
}
"""Options that are OpenVINO properties of each generative model."""


PREFIX_CACHE_CLOSE_S = 10.0
"""How long an engine writes blocks to prefix_cache_path at most when it is stopped."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class EngineOptions(Options):
    """What the engine process of a model needs besides ModelOptions."""

    # --- engine
    num_streams: int = option(
        0,
        "how many batches of a pooling model, or texts of a text-to-speech model, are computed in "
        "parallel; 0: one, except that a small pooling model on a CPU computes one in each thread while "
        "many texts wait. For an image model it is OpenVINO's NUM_STREAMS, which one image makes little use of",
        group="engine",
        low=0,
        high=256,
    )
    pooling_batch_tokens: int = option(
        1024, "most tokens in one batch of a pooling model, padding included", group="engine", low=16, high=1 << 20
    )
    pipeline_type: str = option(
        "AUTO",
        "what computes the model. PAGED: the server's own engine, on the CPU; LM_CB, "
        "VLM_CB: openvino-genai's continuous batching; LM, VLM, OMNI: openvino-genai, one request at a time; "
        "ASR: openvino-genai's speech recognition; AUTO: chosen by model, device and options",
        group="engine",
        choices=("AUTO", "LM", "LM_CB", "VLM", "VLM_CB", "OMNI", "PAGED", "ASR"),
    )
    target_device: str = option(
        "CPU",
        "OpenVINO device, such as CPU, GPU, AUTO:... or HETERO:...; auto: the best GPU, or the CPU if there is none",
        group="engine",
    )
    plugin_config: str = option("", "OpenVINO properties as a JSON object", group="engine", json_object=True)
    cache_size: int = option(0, "size of the KV cache in GB; 0: what cache_memory_percent says", group="engine", low=0)
    cache_memory_percent: int = option(
        25,
        "size of the KV caches of all models together, as a percentage of the memory that is free at the "
        "start; it is allocated as it is needed",
        group="engine",
        low=1,
        high=90,
    )
    kv_cache_precision: str = option(
        "", "precision of the KV cache: u4, u8, f16, bf16 or f32; empty: the device's default", group="engine"
    )
    key_cache_precision: str = option(
        "", "precision of the keys in the KV cache; empty: that of kv_cache_precision", group="engine"
    )
    value_cache_precision: str = option(
        "", "precision of the values in the KV cache; empty: that of kv_cache_precision", group="engine"
    )
    max_num_batched_tokens: int = option(
        256,
        "most tokens that are computed in one step; with fewer, running answers pause less while long "
        "prompts are computed",
        group="engine",
        low=1,
    )
    max_num_seqs: int = option(256, "most sequences that run at once; others wait", group="engine", low=1, high=4096)
    priority_across_clients: bool = option(
        False,
        "let the priority of a request count against requests of other clients, too; false: only against "
        "those of the same client",
        group="engine",
    )
    dynamic_split_fuse: bool = option(True, "split long prompts over several steps", group="engine")
    enable_prefix_caching: bool = option(
        True, "keep the KV cache of prompts, and reuse it for prompts that begin with the same tokens", group="engine"
    )
    prefix_cache_path: str = option(
        "",
        "directory in which PAGED keeps the prefix cache when it leaves memory, also over restarts; empty: nowhere",
        group="engine",
    )
    prefix_cache_disk_gb: float = option(
        8.0,
        "most GB of files in prefix_cache_path, of all models together; what was used longest ago is removed",
        group="engine",
        low=0.001,
    )
    kv_events_config: str = option(
        "",
        "JSON object with vLLM's settings of KV cache events over ZeroMQ (docs/operations.md), for one model with "
        "PAGED; empty: off",
        group="engine",
        json_object=True,
    )
    slot_save_path: str = option(
        "",
        "directory for files of llama.cpp's POST /slots/{id}, in which PAGED saves what is cached of a text; together "
        "they have at most prefix_cache_disk_gb; empty: there is no such endpoint",
        group="engine",
    )
    prewarm: str = option(
        "",
        "JSON file with the body of a chat or completions request, or a list of them (.jsonl: one in each line): their "
        "prompts are computed, or read from prefix_cache_path, whenever the model is loaded, before it is ready",
        group="engine",
    )
    cache_eviction_config: str = option(
        "",
        "JSON object with settings of KV cache eviction (docs/engine.md); empty: off",
        group="engine",
        json_object=True,
    )
    sparse_attention_config: str = option(
        "",
        "JSON object with settings of sparse attention (docs/engine.md); empty: off",
        group="engine",
        json_object=True,
    )
    cache_interval_multiplier: int = option(
        0,
        "for hybrid models: KV blocks between saved states of a prompt; 0: 64 with PAGED, else openvino-genai's own",
        group="engine",
        low=0,
    )
    max_prompt_len: int = option(
        0, "longest prompt in tokens that an NPU is compiled for; 0: 1024", group="engine", low=0
    )
    model_distribution_policy: str = option(
        "",
        "how several devices share the model; empty: not set",
        group="engine",
        choices=("", "TENSOR_PARALLEL", "PIPELINE_PARALLEL"),
    )
    cache_dir: str = option("", "directory for compiled models, which load faster from there", group="engine")
    draft_model_path: str = option("", "directory of a draft model for speculative decoding", group="engine")
    draft_device: str = option("", "device of the draft model; empty: that of the model", group="engine")
    draft_cache_size: int = option(
        0, "size of the draft model's KV cache in GB; 0: chosen by the engine", group="engine", low=0
    )
    draft_max_num_batched_tokens: int = option(
        0, "most tokens that the draft model computes in one step; 0: as many as the model", group="engine", low=0
    )
    draft_max_num_seqs: int = option(
        0,
        "most sequences of the draft model that run at once; 0: as many as of the model",
        group="engine",
        low=0,
        high=4096,
    )
    draft_eagle3_mode: bool = option(
        False, "the draft model is an EAGLE-3 head of the model; PAGED knows it by its config.json, too", group="engine"
    )
    mtp: str = option(
        "auto",
        "PAGED drafts tokens with the head for multi-token prediction in the model's directory; auto: if there is one, "
        "and neither a draft model nor prompt lookup",
        group="engine",
        choices=("auto", "true", "false"),
    )
    prompt_lookup: bool = option(
        False,
        "speculative decoding without a draft model: what follows the same tokens in the prompt is proposed",
        group="engine",
    )
    ngram_speculation: bool = option(
        True,
        "PAGED proposes tokens that followed the same ones in the prompt or the answer, for networks that gain by it",
        group="engine",
    )
    engine_watchdog_s: float = option(
        120.0,
        "restart an engine that has work and has given no sign of life for this many seconds",
        group="engine",
        low=1,
    )
    engine_load_timeout_s: float = option(
        600.0, "give up loading a model after this many seconds", group="engine", low=1
    )
    fake_engine: bool = option(
        False, "run a scripted engine instead of a model, for tests and benchmarks", group="engine"
    )

    # --- limits
    max_queued_requests: int = option(256, "most requests that wait for the engine; more: 429", group="limits", low=1)
    max_queued_requests_per_client: int = option(
        128, "most requests of one client that wait for the engine; more: 429", group="limits", low=1
    )
    max_queued_tokens_per_client: int = option(
        1 << 20,
        "most prompt tokens in the waiting requests of one client; more: 429. A single request with more: 400",
        group="limits",
        low=1,
    )
    max_sequences_per_request: int = option(
        512, "most prompts of a request times its n; more: 400", group="limits", low=1, high=1 << 17
    )
    max_pooling_tokens: int = option(
        300_000,
        "most tokens in all inputs of one embeddings, rerank, score or classification request; more: 400",
        group="limits",
        low=1,
    )
    grammar_timeout_s: float = option(
        2.0,
        "CPU seconds that compiling a client's grammar or schema may take; more: 400",
        group="limits",
        low=0.05,
        high=600,
    )
    grammar_memory_mb: int = option(
        512, "MB of memory that compiling a grammar or schema may take; more: 400", group="limits", low=32
    )
    grammar_cache_mb: int = option(
        256, "MB of memory for compiled grammars; when it is full, all are dropped", group="limits", low=1
    )
    grammar_max_bytes: int = option(65536, "most bytes of a grammar or schema; more: 400", group="limits", low=64)
    grammar_max_nesting: int = option(
        64, "deepest nesting of a grammar or schema; more: 400", group="limits", low=4, high=256
    )
    image_cache_mb: int = option(
        256,
        "MB of memory for encoded images, by their content (PAGED); beyond it, those not used for longest are dropped",
        group="limits",
        low=1,
    )

    # --- behaviour
    structured_output_backend: str = option(
        "auto",
        "library that matches grammars. guidance: only with PAGED; xgrammar: with every pipeline, with "
        "PAGED if the package xgrammar is installed; auto: guidance with PAGED, else xgrammar",
        group="behaviour",
        choices=("auto", "guidance", "xgrammar"),
    )
    log_path: str = option("", "file that gets a copy of the log", group="behaviour")
    log_format: str = option("text", "format of log lines", group="behaviour", choices=("text", "json"))
    log_level: str = option(
        "INFO",
        "least important level that is logged",
        group="behaviour",
        choices=("TRACE", "DEBUG", "INFO", "WARNING", "ERROR"),
    )

    @property
    def streams(self) -> int:
        """What is computed at once where num_streams leaves it open: one."""
        return max(1, self.num_streams)
