"""The options of the core: those of a model, of its engine process and of the server, and the limits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..composition import TEXT_GENERATION
from .options import DIRECTORY, Options, option

_deployment = partial(option, group="deployment")
_model = partial(option, group="model")
_engine = partial(option, group="engine")
_limits = partial(option, group="limits")
_behaviour = partial(option, group="behaviour")
_repository = partial(option, group="repository")
_listen = partial(option, group="listen")

DEMO_MODEL = Path(__file__).parents[1] / "demo_model"
"""The small model that is part of the package, served if no option selects a model."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ModelOptions(Options):
    """The options of one model. Each model in a config file may set them."""

    # --- deployment
    task: str = _deployment(
        "",
        "task of the model, such as text_generation, embeddings or speech2text; empty: recognised from its files. If "
        "it is set, graph.pbtxt is not read",
    )

    # --- model
    model_path: str = _model(
        "", "directory of a model (OpenVINO IR), or a GGUF file. The demo models are served if no option names a model"
    )
    model_name: str = _model(
        "",
        "name of the model in the API; empty: the name of its directory. With model_repository_path: the one model to"
        " serve",
    )
    model_aliases: str = _model(
        "",
        "further names of the model in requests, separated by spaces; responses have model_name",
        several=True,
        of_one=True,
    )
    chat_template: str = _model("", "chat template in place of the model's own: a file, or the template itself")
    trust_request_chat_template: bool = _model(
        False, "let requests bring a chat template of their own; it is rendered in a sandbox without access to files"
    )
    chat_template_content_format: str = _model(
        "auto",
        "how the chat template gets the content of a message. string: as one text; openai: as a list of parts; auto: "
        "as the template expects it",
        choices=("auto", "string", "openai"),
    )
    response_role: str = _model("assistant", "role of the messages that chat completions return")
    max_tokens_limit: int = _model(
        0, "largest max_tokens that a request may set, and the default of those that set none; 0: no limit", low=0
    )
    clamp_max_tokens: bool = _model(
        False, "lower a max_tokens that is above max_tokens_limit to that limit, instead of answering 400"
    )
    best_of_limit: int = _model(20, "largest n and best_of that a request may set", low=1, high=512)
    max_logprobs: int = _model(
        20,
        "largest logprobs, top_logprobs and prompt_logprobs that a request may set; -1: the whole vocabulary",
        low=-1,
    )
    generation_config_path: str = _model(
        "",
        "file with defaults of request fields, in place of the model's generation_config.json; a relative path is "
        "relative to the model's directory; none: no such defaults",
    )
    override_generation_config: str = _model(
        "", "JSON object with defaults of request fields; they win over those of the file", json_object=True
    )
    default_chat_template_kwargs: str = _model(
        "", "JSON object with variables for the chat template; those of a request win", json_object=True
    )
    max_model_len: int = _model(0, "context length of the model in tokens; 0: the model's own", low=0)

    @property
    def model_dir(self) -> Path:
        """The directory of the model."""
        return Path(self.model_path) if self.model_path else DEMO_MODEL

    @property
    def served_name(self) -> str:
        """The model's name in the API."""
        if self.model_name:
            return self.model_name
        return os.path.basename(os.path.realpath(self.model_dir)) if self.model_path else "demo"

    @property
    def served_names(self) -> tuple[str, ...]:
        """All names of the model in the API, served_name first."""
        return tuple(dict.fromkeys((self.served_name, *self.model_aliases.split())))


PROPERTIES = {
    "kv_cache_precision": "KV_CACHE_PRECISION",
    "key_cache_precision": "KEY_CACHE_PRECISION",
    "value_cache_precision": "VALUE_CACHE_PRECISION",
    "model_distribution_policy": "MODEL_DISTRIBUTION_POLICY",
    "cache_dir": "CACHE_DIR",
}
"""The options that set OpenVINO properties of each generative model, with the names of the properties."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class EngineOptions(Options):
    """The options, besides ModelOptions, that the engine process of a model needs."""

    # --- engine
    num_streams: int = _engine(
        0,
        "how many batches or inputs a model that generates no text computes in parallel; 0: one, or what its task "
        "chooses. The pages of the tasks say what it is good for",
        low=0,
        high=256,
        not_of=TEXT_GENERATION.name,
    )
    pipeline_type: str = _engine(
        "AUTO",
        "what computes the model. PAGED: the server's own engine, on the CPU; LM_CB, VLM_CB: openvino-genai's "
        "continuous batching; LM, VLM, OMNI: openvino-genai, one request at a time; ASR: openvino-genai's speech "
        "recognition; AUTO: chosen by model, device and options",
        choices=("AUTO", "LM", "LM_CB", "VLM", "VLM_CB", "OMNI", "PAGED", "ASR"),
    )
    target_device: str = _engine(
        "CPU",
        "OpenVINO device, such as CPU, GPU, AUTO:... or HETERO:...; auto: the best GPU, or the CPU if there is none",
    )
    plugin_config: str = _engine("", "OpenVINO properties as a JSON object", json_object=True)
    batch_invariant: bool = _engine(
        False,
        "give a request the same answer alone and beside others: compute in f32, without OpenVINO's dynamic "
        "quantization and with a KV cache in f32 unless another precision is given; slower",
    )
    cache_size: int = _engine(0, "size of the KV cache in GB; 0: what cache_memory_percent says", low=0)
    cache_memory_percent: int = _engine(
        25,
        "size of the KV caches of all models together, as a percentage of the memory that is free at the start; it is"
        " allocated as it is needed",
        low=1,
        high=90,
    )
    kv_cache_precision: str = _engine(
        "", "precision of the KV cache: u4, u8, f16, bf16 or f32; empty: the device's default"
    )
    key_cache_precision: str = _engine(
        "", "precision of the keys in the KV cache; empty: that of kv_cache_precision, or what goes with that of values"
    )
    value_cache_precision: str = _engine(
        "", "precision of the values in the KV cache; empty: that of kv_cache_precision, or what goes with that of keys"
    )
    max_num_batched_tokens: int = _engine(
        0,
        "most tokens that are computed in one step; with fewer, running answers pause less while long prompts are "
        "computed; 0: 256, and with PAGED up to 1024 as long as such a step takes at most a quarter of a second",
        low=0,
    )
    max_num_seqs: int = _engine(256, "most sequences that run at once; others wait", low=1, high=4096)
    priority_across_clients: bool = _engine(
        False,
        "let the priority of a request count against requests of other clients, too; false: only against those of the"
        " same client",
    )
    dynamic_split_fuse: bool = _engine(True, "split long prompts over several steps")
    enable_prefix_caching: bool = _engine(
        True, "keep the KV cache of prompts, and reuse it for prompts that begin with the same tokens"
    )
    cache_interval_multiplier: int = _engine(
        0,
        "for hybrid models: KV blocks between saved states of a prompt; 0: 64 with PAGED, else openvino-genai's own",
        low=0,
    )
    model_distribution_policy: str = _engine(
        "", "how several devices share the model; empty: not set", choices=("", "TENSOR_PARALLEL", "PIPELINE_PARALLEL")
    )
    cache_dir: str = _engine("", "directory for compiled models, which load faster from there", path=DIRECTORY)
    engine_watchdog_s: float = _engine(
        120.0, "restart an engine that has work and has given no sign of life for this many seconds", low=1
    )
    engine_load_timeout_s: float = _engine(600.0, "give up loading a model after this many seconds", low=1)
    without: str = _deployment(
        "",
        "features to leave out, separated by commas (lean_ovms features lists them): they have no endpoints and no "
        "options; only on the command line and in the environment",
    )

    # --- limits
    max_queued_requests: int = _limits(256, "most requests that wait for the engine; more: 429", low=1)
    max_queued_requests_per_client: int = _limits(
        128, "most requests of one client that wait for the engine; more: 429", low=1
    )
    max_queued_tokens_per_client: int = _limits(
        1 << 20,
        "most prompt tokens in the waiting requests of one client; more: 429. A single request with more: 400",
        low=1,
    )
    max_sequences_per_request: int = _limits(
        512, "most prompts of a request times its n; more: 400", low=1, high=1 << 17
    )

    # --- behaviour
    log_path: str = _behaviour("", "file that gets a copy of the log")
    log_format: str = _behaviour("text", "format of log lines", choices=("text", "json"))
    log_level: str = _behaviour(
        "INFO", "least important level that is logged", choices=("TRACE", "DEBUG", "INFO", "WARNING", "ERROR")
    )

    @property
    def streams(self) -> int:
        """The number of streams, 1 if num_streams does not set it."""
        return max(1, self.num_streams)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ServerOptions(Options):
    """The options of the server as a whole, independent of its models."""

    # --- deployment
    file_system_poll_wait_seconds: float = _deployment(
        1.0,
        "seconds between two looks whether config.json, a graph.pbtxt or the API keys have changed; 0: never",
        low=0,
    )
    options_file: str = _deployment(
        "", "JSON file with an object of options by name; the command line and the environment win over it"
    )

    # --- repository
    source_model: str = _repository(
        "", "model to serve by its name, organisation/name; a missing one is pulled from the hub"
    )
    model_repository_path: str = _repository(
        "",
        "directory of models: all of them are served, or with model_name that one. source_model is pulled into it, "
        "and without this option into the user's cache",
        env="OVMS_MODEL_REPOSITORY_PATH",
    )

    # --- listen
    rest_port: int = _listen(8000, "TCP port; 0: any free one", low=0, high=65535)
    rest_bind_address: str = _listen("0.0.0.0", "addresses to listen on, IPv4 or IPv6, separated by commas")
    reuse_port: bool = _listen(
        False,
        "share the port with another server that has this option, so that a restart needs no pause: the new server "
        "listens once its models are loaded",
    )
    unix_socket: str = _listen("", "path of a Unix socket to listen on, in place of a TCP port")
    root_path: str = _listen(
        "", "prefix of paths that a proxy adds, such as /llm; requests are served with and without it"
    )
    api_key: str = _listen(
        "",
        "the API key; only as an environment variable",
        env="API_KEY",
        secret=True,
    )
    trusted_proxies: str = _listen(
        "", "proxies whose X-Forwarded-For is believed, separated by commas: addresses, networks, unix or all"
    )
    protect_models: bool = _listen(False, "require the API key for the list of models, too")
    allowed_origins: str = _listen(
        "*",
        "origins of pages that may use the server (CORS), separated by commas; localhost: every page of the client's "
        "own machine",
    )
    allowed_hosts: str = _listen(
        "",
        "names that the Host header may have, separated by commas, beside the machine's own names and addresses; "
        "others are refused. *: any; empty: checked only where a page could do harm (docs/security.md)",
    )
    allowed_methods: str = _listen("*", "value of the header Access-Control-Allow-Methods (CORS)")
    allowed_headers: str = _listen("*", "value of the header Access-Control-Allow-Headers (CORS)")
    allow_credentials: bool = _listen(False, "send the header Access-Control-Allow-Credentials (CORS)")

    # --- behaviour
    neutralize_special_tokens: bool = _behaviour(
        False, "read special tokens in messages of users and tools as plain text"
    )
    return_tokens_as_token_ids: bool = _behaviour(
        False, "write tokens in logprobs as token_id:NUMBER in every response"
    )
    enable_force_include_usage: bool = _behaviour(
        False, "send token counts at the end of every stream, as with include_usage"
    )
    enable_per_request_metrics: bool = _behaviour(
        False, "send timings with every response of chat and completions; in streams, together with the token counts"
    )
    sse_ping_s: float = _behaviour(
        15.0, "send a comment line when a stream has been silent for this many seconds; 0: never", low=0
    )
    access_log: bool = _behaviour(True, "log one line for each request")
    log_prompts: bool = _behaviour(
        False, "log prompts as the model sees them; false: no text of a prompt gets into the log"
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class LimitOptions(Options):
    """The limits that the front end enforces; those of the engine are in EngineOptions."""

    # --- limits
    max_header_bytes: int = _limits(65536, "most bytes of the request line and headers; more: 431", low=1024)
    max_body_bytes: int = _limits(32 << 20, "most bytes of a request body; more: 413", low=1024)
    max_body_memory_mb: int = _limits(
        512, "MB for the bodies of all running requests together; further requests wait", low=1
    )
    max_body_values: int = _limits(
        1 << 18, "most values in a JSON body, counted by its commas, colons and brackets; more: 400", low=1 << 16
    )
    max_connections: int = _limits(
        1024,
        "most open connections; a further one closes the longest idle one, and is answered 503 if none is idle",
        low=1,
    )
    max_connections_per_client: int = _limits(
        0,
        "most open connections of one address, or of one IPv6 network of 64 bits; 0: three quarters of max_connections",
        low=0,
    )
    header_timeout_s: float = _limits(
        20.0, "seconds in which the headers of a request must arrive; later: 408", low=0.1
    )
    body_timeout_s: float = _limits(60.0, "seconds in which the body of a request must arrive; later: 408", low=0.1)
    keep_alive_timeout_s: float = _limits(75.0, "close a connection that has been idle for this many seconds", low=0.1)
    stream_stall_timeout_s: float = _limits(
        60.0, "cancel a request whose client has not read its response for this many seconds", low=0.1
    )
    request_timeout_s: float = _limits(0.0, "stop a generation after this many seconds; 0: no limit", low=0)
    drain_timeout_s: float = _limits(30.0, "seconds that running requests have to finish when the server stops", low=0)
    drain_delay_s: float = _limits(
        0.0, "seconds after a stop signal in which readiness is 503 and requests are still served", low=0
    )
    template_timeout_s: float = _limits(
        2.0, "CPU seconds that rendering a chat template may take; more: 400", low=0.05, high=600
    )
    max_prompts: int = _limits(128, "most prompts in one completions request; more: 400", low=1, high=4096)
