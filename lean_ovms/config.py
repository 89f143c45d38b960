"""Every option once: name, type, default, bounds and help. Flags, environment names and the README table follow.

The flag of a field is --name (hyphens and underscores are the same), its environment variable LEAN_OVMS_NAME.
A value out of bounds stops the start with a message that names the option. --help imports this module: keep it light.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from . import lora_modules
from .errors import StartError
from .options import check, option

DEMO_MODEL = Path(__file__).parent / "demo_model"
"""The small model that ships with the package; served when no option points to a model."""

DEMO_EMBED = Path(__file__).parent / "demo_embed"
"""A small model for embeddings that is served beside it, as demo-embed."""

POOLING_TASKS = ("embeddings", "rerank", "classify", "token_classify")
"""Tasks of models that compute vectors, scores or classes; OVMS has the first two."""
SPEECH_TO_TEXT = "speech2text"
"""Task of models that transcribe and translate speech, by OVMS's name."""
TEXT_TO_SPEECH = "text2speech"
"""Task of models that speak texts, by OVMS's name."""
OTHER_TASKS = (*POOLING_TASKS, SPEECH_TO_TEXT, TEXT_TO_SPEECH)
"""Tasks of models that do not generate text."""
SERVED_TASKS = ("text_generation", *OTHER_TASKS)
"""Tasks, by OVMS's names, that a model may have here; `repository/task.py` has all of them."""

LOCAL_PAGES = "localhost"
"""In --allowed_origins: every page of the client's own machine, whatever its port, as in llama.cpp."""
_LOCAL_ORIGIN = re.compile(r"https?://(?:localhost|127\.0\.0\.1|\[::1\])(?::\d{1,5})?")
PER_MODEL = ("model", "engine")
"""Groups of options that each model of a config file may set; the others are those of the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All options of a server. Build it with keywords, or from a command line with cli.parse."""

    # --- deployment
    config_path: str = option("", "config.json with the models to serve", group="deployment")
    file_system_poll_wait_seconds: float = option(
        1.0,
        "seconds between checks of config.json and graph.pbtxt for changes; 0: no checks",
        group="deployment",
        low=0,
    )
    task: str = option(
        "",
        "task of the model, empty: from its files; if given, graph.pbtxt is not read",
        group="deployment",
    )
    load_models: str = option(
        "auto",
        "when: at the start, by a request, or auto: by requests several models of a repository or in groups",
        group="deployment",
        choices=("auto", "start", "request"),
    )
    max_loaded_models: int = option(
        0, "models or groups in memory; 0: one if there are groups, else by free memory", group="deployment", low=0
    )
    options_file: str = option(
        "", "JSON file with an object of options by name; flags and variables have precedence", group="deployment"
    )

    # --- repository
    source_model: str = option("", "model of a hub (organisation/name); pulled if it is missing", group="repository")
    model_repository_path: str = option(
        "",
        "directory of models; model_name in it is served, or else all; source_model is pulled to it, or else to the "
        "user's cache",
        group="repository",
        env="OVMS_MODEL_REPOSITORY_PATH",
    )
    pull: bool = option(False, "command: pull source_model and exit", group="repository")
    overwrite_models: bool = option(False, "pull again models that are already there", group="repository")
    gguf_filename: str = option("", "GGUF file of source_model; the first part of a split file", group="repository")
    draft_source_model: str = option(
        "", "draft model of a hub for speculative decoding, pulled into the model's directory", group="repository"
    )
    weight_format: str = option(
        "", "weight format of models that optimum-cli converts; empty: int8", group="repository"
    )
    extra_quantization_params: str = option("", "additional arguments for optimum-cli", group="repository")
    vocoder: str = option(
        "", "vocoder for a SpeechT5 that optimum-cli converts, such as microsoft/speecht5_hifigan", group="repository"
    )
    list_models: bool = option(False, "command: print the models in model_repository_path and exit", group="repository")
    configure: bool = option(
        False, "command: write the graph.pbtxt of model_path from the options and exit", group="repository"
    )
    add_to_config: str = option(
        "",
        "command: add model_name to config_path, or to the file given here, and exit",
        group="repository",
        bare="true",
    )
    remove_from_config: str = option(
        "",
        "command: remove model_name from config_path, or from the file given here, and exit",
        group="repository",
        bare="true",
    )

    # --- model
    model_path: str = option(
        "",
        "model directory (OpenVINO IR) or GGUF file; without any option for models the demo models are served",
        group="model",
    )
    model_name: str = option(
        "",
        "name in the API, empty: the directory's name; with model_repository_path: the model in it to serve",
        group="model",
    )
    model_aliases: str = option(
        "",
        "further names of the model in the API, separated by blanks; answers carry model_name",
        group="model",
        several=True,
    )
    group_name: str = option("", "models loaded and unloaded together; permanent: never unloaded", group="model")
    model_idle_timeout_s: float = option(
        0.0, "seconds before an unused model is unloaded; a request loads it again; 0: never", group="model", low=0
    )
    chat_template: str = option("", "chat template instead of the model's, a file or the text itself", group="model")
    trust_request_chat_template: bool = option(
        False, "allow chat_template in requests; such a template runs in the sandbox, without files", group="model"
    )
    chat_template_content_format: str = option(
        "auto", "form of message content for the chat template", group="model", choices=("auto", "string", "openai")
    )
    response_role: str = option("assistant", "role of the messages in answers of chat completions", group="model")
    tool_parser: str = option("", "tool parser; empty: from the chat template; none: off", group="model")
    reasoning_parser: str = option("", "reasoning parser; empty: from the chat template; none: off", group="model")
    enable_tool_guided_generation: bool = option(
        False, "enforce tool schemas also with tool_choice auto", group="model"
    )
    max_tokens_limit: int = option(0, "largest and default max_tokens of a request; 0: no limit", group="model", low=0)
    clamp_max_tokens: bool = option(
        False, "take max_tokens above max_tokens_limit as the limit instead of a 400", group="model"
    )
    best_of_limit: int = option(20, "largest n and best_of of a request", group="model", low=1, high=512)
    max_logprobs: int = option(
        20, "largest top_logprobs, logprobs and prompt_logprobs of a request; -1: the vocabulary", group="model", low=-1
    )
    generation_config_path: str = option(
        "",
        "file of request defaults to use instead of generation_config.json, relative to the model; none: no defaults",
        group="model",
    )
    override_generation_config: str = option(
        "", "request defaults as a JSON object, above those of the file", group="model", json_object=True
    )
    default_chat_template_kwargs: str = option(
        "", "variables for the chat template as a JSON object, below those of requests", group="model", json_object=True
    )
    lora_modules: str = option(
        "", "LoRA adapters, each served as a model: name=path[,alpha] name=path ...", group="model", several=True
    )
    max_loras: int = option(
        4, "LoRA adapters loaded at once; the least recently used one is unloaded for another", group="model", low=1
    )
    lora_idle_timeout_s: float = option(
        300.0, "seconds before the engine of an unused adapter is stopped; 0: never", group="model", low=0
    )
    allow_runtime_lora: bool = option(
        False, "allow clients to load and unload adapters from the server's file system", group="model"
    )
    max_model_len: int = option(0, "context length in tokens; 0: the model's own", group="model", low=0)

    pooling: str = option(
        "",
        "how the vectors of an embeddings model's tokens become one; ALL: they stay apart, for scores by late "
        "interaction; empty: from its files",
        group="model",
        choices=("", "CLS", "LAST", "MEAN", "MAX", "MEAN_SQRT_LEN", "WEIGHTED_MEAN", "ALL"),
    )
    normalize: str = option(
        "",
        "L2-normalize vectors; empty: from the model's files, else true",
        group="model",
        choices=("", "true", "false"),
    )
    embed_long_inputs: str = option(
        "error",
        "inputs of embeddings beyond the model's window: error: a 400; mean: of the vectors of their pieces",
        group="model",
        choices=("error", "mean"),
    )
    truncate: bool = option(False, "cut inputs of embeddings to the model's window instead of a 400", group="model")
    matryoshka: bool = option(False, "allow dimensions in embeddings requests for any model", group="model")
    max_position_embeddings: int = option(0, "window of a reranker in tokens; 0: the model's own", group="model", low=0)
    max_allowed_chunks: int = option(
        10000, "documents, and chunks of them, in one rerank request", group="model", low=1
    )
    enable_word_timestamps: bool = option(
        False, "prepare a speech model for word times at the start instead of at the first request", group="model"
    )

    voices: str = option(
        "",
        "voices of a text-to-speech model besides those in its folder voices, as a JSON object: name to file",
        group="model",
        json_object=True,
    )
    speed_min: float = option(0.25, "lowest speed of a request for speech", group="model", low=0.05, high=20)
    speed_max: float = option(4.0, "highest speed of a request for speech", group="model", low=0.05, high=20)
    max_speech_characters: int = option(
        4096, "characters of the text of one request for speech", group="model", low=1, high=1 << 20
    )

    # --- engine
    num_streams: int = option(
        0,
        "batches of a pooling model, or texts of a text-to-speech model, computed at once; 0: one, and with a small "
        "pooling model on a CPU one for each thread while many texts wait",
        group="engine",
        low=0,
        high=256,
    )
    pooling_batch_tokens: int = option(
        1024, "tokens, padding included, of one batch of a pooling model", group="engine", low=16, high=1 << 20
    )
    pipeline_type: str = option(
        "AUTO",
        "PAGED: the paged engine, for text models on the CPU; LM_CB and VLM_CB: openvino-genai's continuous batching; "
        "LM, VLM: one request at a time; ASR: its pipeline for speech to text; AUTO: by model, device and options",
        group="engine",
        choices=("AUTO", "LM", "LM_CB", "VLM", "VLM_CB", "PAGED", "ASR"),
    )
    target_device: str = option(
        "CPU", "OpenVINO device, also AUTO:... or HETERO:...; auto: the best GPU, else CPU", group="engine"
    )
    plugin_config: str = option("", "OpenVINO properties as a JSON object", group="engine", json_object=True)
    cache_size: int = option(0, "size of the KV cache in GB; 0: by cache_memory_percent", group="engine", low=0)
    cache_memory_percent: int = option(
        25,
        "size of the KV cache in percent of the memory free at the start, allocated as needed; several models share it",
        group="engine",
        low=1,
        high=90,
    )
    kv_cache_precision: str = option("", "KV cache precision (u8, f16, f32); empty: the device's", group="engine")
    max_num_batched_tokens: int = option(256, "tokens computed per step; fewer: steadier ITL", group="engine", low=1)
    max_num_seqs: int = option(256, "sequences running at once; further ones wait", group="engine", low=1, high=4096)
    priority_across_clients: bool = option(False, "priority orders the requests of all clients", group="engine")
    dynamic_split_fuse: bool = option(True, "split long prompts over steps", group="engine")
    enable_prefix_caching: bool = option(True, "reuse the KV cache of common prompt prefixes", group="engine")
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
        "distribution of the model over several devices",
        group="engine",
        choices=("", "TENSOR_PARALLEL", "PIPELINE_PARALLEL"),
    )
    cache_dir: str = option("", "directory for compiled models, which load faster", group="engine")
    draft_model_path: str = option("", "directory of a draft model for speculative decoding", group="engine")
    draft_device: str = option("", "device of the draft model; empty: target_device", group="engine")
    draft_cache_size: int = option(0, "size of the draft's KV cache in GB; 0: its share", group="engine", low=0)
    draft_max_num_batched_tokens: int = option(0, "draft tokens per step; 0: as the model", group="engine", low=0)
    draft_max_num_seqs: int = option(0, "draft sequences at once; 0: as the model", group="engine", low=0, high=4096)
    draft_eagle3_mode: bool = option(False, "the draft is an Eagle3 head of the model", group="engine")
    prompt_lookup: bool = option(False, "speculative decoding by prompt lookup", group="engine")
    engine_watchdog_s: float = option(
        120.0, "seconds without a sign of life before a busy engine is restarted", group="engine", low=1
    )
    engine_load_timeout_s: float = option(600.0, "seconds before loading a model is given up", group="engine", low=1)
    fake_engine: bool = option(False, "scripted engine instead of a model, for tests and benchmarks", group="engine")

    # --- listen
    rest_port: int = option(8000, "TCP port; 0: a free one", group="listen", low=0, high=65535)
    rest_bind_address: str = option("0.0.0.0", "addresses to listen on, separated by commas; IPv6 too", group="listen")
    reuse_port: bool = option(
        False,
        "share the port with another server that has this option; it listens once its models are loaded, so that a "
        "restart hands over",
        group="listen",
    )
    unix_socket: str = option("", "path of a Unix socket to listen on instead of TCP", group="listen")
    root_path: str = option(
        "", "path that a proxy puts before every path, such as /llm; served with and without", group="listen"
    )
    ssl_certfile: str = option("", "TLS certificate chain (PEM)", group="listen")
    ssl_keyfile: str = option("", "TLS private key (PEM)", group="listen")
    api_key_file: str = option("", "file with the API key in line 1; empty: the variable API_KEY", group="listen")
    api_key: str = option("", "API key; an environment variable only", group="listen", env="API_KEY", secret=True)
    trusted_proxies: str = option("", "addresses, networks, unix, all: X-Forwarded-For is believed", group="listen")
    protect_models: bool = option(False, "require the API key for the model list, too", group="listen")
    allowed_origins: str = option(
        "*", "CORS: origins, separated by commas; localhost: pages of the client's own machine", group="listen"
    )
    allowed_hosts: str = option(
        "",
        "names of the server in Host, separated by commas, besides its machine's, addresses and local names; then "
        "others are refused; *: any; empty: checked where pages could do harm (docs/security.md)",
        group="listen",
    )
    allowed_methods: str = option("*", "CORS: Access-Control-Allow-Methods", group="listen")
    allowed_headers: str = option("*", "CORS: Access-Control-Allow-Headers", group="listen")
    allow_credentials: bool = option(False, "CORS: Access-Control-Allow-Credentials", group="listen")

    # --- limits
    max_header_bytes: int = option(65536, "bytes of request line and headers; more: 431", group="limits", low=1024)
    max_body_bytes: int = option(32 << 20, "bytes of a request body; more: 413", group="limits", low=1024)
    max_body_memory_mb: int = option(512, "MB for bodies of requests in work; others wait", group="limits", low=1)
    max_body_values: int = option(1 << 18, "values (or commas) in a JSON body; more: 400", group="limits", low=1 << 16)
    max_connections: int = option(1024, "open connections; more: the longest idle ends, or 503", group="limits", low=1)
    max_connections_per_client: int = option(
        0, "open connections of one address or IPv6 /64; 0: three quarters of max_connections", group="limits", low=0
    )
    max_queued_requests: int = option(256, "requests waiting for the engine; more: 429", group="limits", low=1)
    max_queued_requests_per_client: int = option(128, "those of one client; more: 429", group="limits", low=1)
    max_queued_tokens_per_client: int = option(
        1 << 20, "tokens of their prompts; more: 429; of all prompts of one request; more: 400", group="limits", low=1
    )
    max_sequences_per_request: int = option(512, "prompts times n; more: 400", group="limits", low=1, high=1 << 17)
    header_timeout_s: float = option(20.0, "seconds to receive the headers; then 408", group="limits", low=0.1)
    body_timeout_s: float = option(60.0, "seconds to receive the body; then 408", group="limits", low=0.1)
    keep_alive_timeout_s: float = option(75.0, "seconds before an idle connection is closed", group="limits", low=0.1)
    stream_stall_timeout_s: float = option(
        60.0, "seconds before a request is cancelled whose client does not read the response", group="limits", low=0.1
    )
    request_timeout_s: float = option(0.0, "seconds before a generation is stopped; 0: no limit", group="limits", low=0)
    drain_timeout_s: float = option(30.0, "seconds for running requests to finish at shutdown", group="limits", low=0)
    drain_delay_s: float = option(
        0.0,
        "seconds after a stop signal in which readiness is 503 and requests are still served",
        group="limits",
        low=0,
    )
    template_timeout_s: float = option(
        2.0, "seconds of CPU time to render a chat template; more: 400", group="limits", low=0.05, high=600
    )
    max_pooling_inputs: int = option(
        2048, "inputs in one request of embeddings, rerank, score or classes; more: 400", group="limits", low=1
    )
    max_pooling_tokens: int = option(
        300_000, "tokens of all inputs of one such request; more: 400", group="limits", low=1
    )
    max_prompts: int = option(128, "prompts in one completions request; more: 400", group="limits", low=1, high=4096)

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

    # --- images
    allowed_media_domains: str = option(
        "",
        "hosts to fetch images from, separated by commas: names, *.name, addresses, networks; all: every public host; "
        "empty: none",
        group="images",
    )
    allowed_local_media_path: str = option("", "directory to read images from by path; empty: none", group="images")
    media_url_allow_redirects: bool = option(
        False, "follow redirects to allowed hosts", group="images", env="OVMS_MEDIA_URL_ALLOW_REDIRECTS"
    )
    max_images: int = option(32, "images in one request", group="images", low=1, high=1024)
    max_image_bytes: int = option(20_000_000, "bytes of an image file", group="images", low=64)
    max_image_pixels: int = option(1 << 25, "pixels of all images of a request", group="images", low=64, high=1 << 28)
    max_pixels_in_work: int = option(1 << 27, "pixels of all requests in work; others wait", group="images", low=64)
    max_image_side: int = option(
        0, "side in pixels of the square that larger images are scaled into; 0: no scaling", group="images", low=0
    )
    image_timeout_s: float = option(10.0, "seconds to fetch an image, and to decode it", group="images", low=0.1)

    # --- audio
    max_audio_file_bytes: int = option(25 << 20, "bytes of an audio file; more: 413", group="audio", low=64)
    max_audio_s: float = option(7200.0, "seconds of audio in a file; more: 400", group="audio", low=0.1, high=1 << 20)
    max_audio_channels: int = option(8, "channels of an audio file; more: 400", group="audio", low=1, high=64)
    min_audio_rate: int = option(
        4000, "samples a second, of each channel, of an audio file; fewer: 400", group="audio", low=100
    )
    max_audio_rate: int = option(192000, "the same; more: 400", group="audio", low=16000, high=1 << 20)
    max_audio_decoders: int = option(
        16, "processes that decode audio, one for each file in work; further files wait", group="audio", low=1
    )
    audio_timeout_s: float = option(10.0, "seconds to decode a block of audio", group="audio", low=0.1)

    # --- realtime
    max_realtime_sessions: int = option(16, "open sessions of /realtime; more: 429", group="realtime", low=1)
    max_response_websockets: int = option(64, "open WebSockets of /responses; more: 429", group="realtime", low=1)
    max_realtime_message_bytes: int = option(1 << 20, "bytes of a message; more: 1009", group="realtime", low=1 << 12)
    realtime_ahead_s: float = option(30.0, "seconds of audio read ahead of the engine", group="realtime", low=1)
    realtime_idle_timeout_s: float = option(60.0, "seconds without a message, then closed", group="realtime", low=1)
    max_realtime_session_s: float = option(
        3600.0, "seconds of a session or a WebSocket of /responses, then closed", group="realtime", low=1
    )
    realtime_partials: bool = option(True, "send stable text of an utterance before its end", group="realtime")

    # --- responses
    response_store: str = option(
        "",
        "SQLite file for stored responses, or postgresql://... for several machines; empty: memory",
        group="responses",
        private=True,
    )
    response_store_strict: bool = option(
        False, "do not start with a damaged store file; off: it is set aside and a new one begins", group="responses"
    )
    response_store_max_age_s: float = option(
        2592000.0,
        "seconds before a response, or an unused conversation, is deleted (30 days); 0: never",
        group="responses",
        low=0,
    )
    response_store_max_count: int = option(
        10000, "stored responses, and stored conversations; the oldest are deleted", group="responses", low=1
    )
    response_store_max_mb: int = option(
        256, "size of the store in MB; the oldest entries are deleted", group="responses", low=1, high=1 << 20
    )

    # --- behaviour
    strict_response_format: bool = option(
        False,
        "refuse a response_format that cannot be enforced with a 400 instead of a Warning header",
        group="behaviour",
    )
    structured_output_backend: str = option(
        "auto",
        "library that matches grammars: guidance only with PAGED; xgrammar with every pipeline, with PAGED if the "
        "package xgrammar is installed; auto: guidance with PAGED, else xgrammar",
        group="behaviour",
        choices=("auto", "guidance", "xgrammar"),
    )
    neutralize_special_tokens: bool = option(
        False, "tokenize special tokens in the text of users and tools as plain text", group="behaviour"
    )
    return_tokens_as_token_ids: bool = option(
        False, "token names in logprobs as token_id:NUMBER in every response", group="behaviour"
    )
    enable_force_include_usage: bool = option(
        False, "token counts at the end of every stream, as if its request had include_usage", group="behaviour"
    )
    enable_per_request_metrics: bool = option(
        False,
        "times of its generation in each response of chat and completions, in streams beside the token counts",
        group="behaviour",
    )
    sse_ping_s: float = option(
        15.0, "seconds of silence in a stream before a comment line is sent; 0: off", group="behaviour", low=0
    )
    web_page: bool = option(True, "serve a page for browsers at /", group="behaviour")
    access_log: bool = option(True, "one log line per request", group="behaviour")
    log_path: str = option("", "file for a copy of the log", group="behaviour")
    log_format: str = option("text", "format of log lines", group="behaviour", choices=("text", "json"))
    log_prompts: bool = option(
        False, "log the text of prompts, as rendered for the model; off: no log line has any", group="behaviour"
    )
    metrics_enable: bool = option(False, "serve Prometheus metrics at /metrics", group="behaviour")
    metrics_list: str = option(
        "", "metrics to serve, separated by commas, of those in docs/operations.md; empty: all", group="behaviour"
    )
    log_level: str = option(
        "INFO", "log level", group="behaviour", choices=("TRACE", "DEBUG", "INFO", "WARNING", "ERROR")
    )

    def __post_init__(self) -> None:
        for row in fields(self):
            check(row.name, getattr(self, row.name), row.metadata)
        if self.task and self.task not in SERVED_TASKS:
            raise StartError(f"--task {self.task} is not served, only {', '.join(SERVED_TASKS)}")
        if self.speed_min > self.speed_max:
            raise StartError("--speed_min must not be above --speed_max")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise StartError(f"--root_path must begin with a slash and not end with one, not {self.root_path!r}")
        if bool(self.ssl_certfile) != bool(self.ssl_keyfile):
            raise StartError("--ssl_certfile and --ssl_keyfile go together")
        if self.reuse_port and self.unix_socket:
            raise StartError("--reuse_port is for a port, and --unix_socket has none")
        self._check_draft()
        lora_modules.parse(self.lora_modules)
        if self.metrics_list and not self.metrics_enable:
            raise StartError("--metrics_list needs --metrics_enable")

    def _check_draft(self) -> None:
        draft = self.draft_model_path or self.draft_source_model
        if self.draft_model_path and self.draft_source_model:
            raise StartError("--draft_model_path and --draft_source_model exclude each other")
        if draft and self.prompt_lookup:
            raise StartError("a draft model and --prompt_lookup exclude each other")
        for row in fields(self):
            if not draft and row.name.startswith("draft_") and getattr(self, row.name) != row.default:
                raise StartError(f"--{row.name} needs --draft_model_path")

    def for_engine(self) -> dict[str, Any]:
        """All fields but the private ones, as JSON for the engine child."""
        return {f.name: getattr(self, f.name) for f in fields(self) if not f.metadata["private"]}

    @property
    def model_dir(self) -> Path:
        """Directory of the model."""
        return Path(self.model_path) if self.model_path else DEMO_MODEL

    @property
    def served_name(self) -> str:
        """The model's name in the API."""
        if self.model_name:
            return self.model_name
        return os.path.basename(os.path.realpath(self.model_dir)) if self.model_path else "demo"

    @property
    def served_names(self) -> tuple[str, ...]:
        """All its names in the API, served_name first."""
        return tuple(dict.fromkeys((self.served_name, *self.model_aliases.split())))

    @property
    def streams(self) -> int:
        """What is computed at once where num_streams leaves it open: one."""
        return max(1, self.num_streams)

    @property
    def origins(self) -> list[str]:
        """The members of allowed_origins."""
        return [origin.strip() for origin in self.allowed_origins.split(",")]

    @property
    def hosts(self) -> list[str]:
        """The members of allowed_hosts, in lower case."""
        return [name.strip().lower() for name in self.allowed_hosts.split(",") if name.strip()]

    def allows_origin(self, origin: str) -> bool:
        """Whether a page of this origin is named, or of the client's own machine where those are allowed."""
        if origin == LOCAL_PAGES:
            return False
        return origin in self.origins or (LOCAL_PAGES in self.origins and bool(_LOCAL_ORIGIN.fullmatch(origin)))

    def cors_headers(self, origin: str = "") -> list[tuple[str, str]]:
        """CORS headers, sent with every response: a browser hides a response without them from the page.

        origin: the page's, if known. The header holds one origin, so with several allowed it is that of the page.
        """
        named = [origin for origin in self.origins if origin != LOCAL_PAGES]
        value = origin if self.allows_origin(origin) else "".join(named[:1])
        headers = [("Access-Control-Allow-Origin", value)] if value else []
        headers += [
            ("Access-Control-Allow-Methods", self.allowed_methods),
            ("Access-Control-Allow-Headers", self.allowed_headers),
            ("Access-Control-Expose-Headers", "X-Request-Id, Warning, Retry-After"),
        ]
        if self.origins != named[:1]:
            headers.append(("Vary", "Origin"))
        return headers + ([("Access-Control-Allow-Credentials", "true")] if self.allow_credentials else [])
