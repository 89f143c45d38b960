"""Declares options with their metadata, checks their values, and has the options of the core.

These are the options of a model, of its engine process and of the server, and the limits.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field, fields
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

from ..composition import TEXT_GENERATION
from ..errors import StartError

TYPE_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
"""The names of the types of options in error messages."""


GIVEN, PRESENT_DIRECTORY, MODEL = "given", "present directory", "model"
"""Kinds of paths: of a file or directory that must exist; of a directory that must exist for the server to start; and
of another model, which is a GGUF file or a directory."""
DIRECTORY, PRIVATE_DIRECTORY = "directory", "private directory"
"""Kinds of paths: a directory made before a model is loaded, and one made with access for the server's user only."""


def option(
    default: Any,
    help: str,  # noqa: A002 - argparse's word
    *,
    group: str,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    env: str | None = None,
    secret: bool = False,
    bare: str | None = None,
    several: bool = False,
    of_one: bool = False,
    private: bool = False,
    json_object: bool = False,
    tasks: tuple[str, ...] = (),
    not_of: str = "",
    path: str = "",
    common: bool = False,
) -> Any:
    """Declares one option, as a field of a class of options.

    Args:
        default: The value if the option is not set; its type is the option's.
        help: A phrase that says what the option does, for --help and the documentation.
        group: The group of --help, one of `config.GROUPS`.
        low: The lowest allowed number.
        high: The highest allowed number.
        choices: The allowed texts; empty if any text is allowed.
        env: A second environment variable, besides LEAN_OVMS_NAME.
        secret: Whether the value is never sent or logged, and the option has no flag.
        bare: The meaning of the flag without a value; None if it needs one.
        several: Whether the flag takes several values, which are joined by spaces.
        of_one: Whether no two models may have the same value, so that it cannot be set for all models of a server.
        private: Whether the value may hold a password; it is neither sent to the engine process nor in a Config's repr.
        json_object: Whether the value is empty or the JSON text of an object.
        tasks: The tasks whose models have the option; empty for all.
        not_of: The only task whose models lack the option; empty if all have it.
        path: The kind of path: GIVEN, PRESENT_DIRECTORY, MODEL, DIRECTORY or PRIVATE_DIRECTORY; empty if the value is
            not a path.
        common: Whether a first start may need it, so that --help without a topic lists it, after the core's options.

    Returns:
        The field of a dataclass, with the arguments as its metadata.
    """
    row = {"help": help, "group": group, "low": low, "high": high, "choices": choices, "env": env, "secret": secret,
           "private": private or secret, "json_object": json_object,
           "several": several, "of_one": of_one, "tasks": tasks, "not_of": not_of, "path": path, "common": common,
           "bare": "true" if isinstance(default, bool) else bare}  # fmt: skip
    return field(default=default, metadata=row, repr=not row["private"])


def from_json(value: Any, kind: type) -> Any:
    """Converts a JSON value to an option of this type; an object becomes JSON text. Raises ValueError."""
    if kind is str and isinstance(value, dict):
        return json.dumps(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(TYPE_NAMES[kind])
    return value


def check(name: str, value: Any, row: Any) -> None:
    """Raises StartError if an option may not have a value.

    Args:
        name: The name of the option.
        value: The value.
        row: The metadata of the option's field, with its limits and choices.

    Raises:
        StartError: The option may not have this value.
    """
    low, high, choices = row["low"], row["high"], row["choices"]
    if isinstance(value, float) and not math.isfinite(value):
        raise StartError(f"--{name} must be a finite number, not {value}")
    if low is not None and value < low:
        raise StartError(f"--{name} must be at least {low:g}, not {value:g}")
    if high is not None and value > high:
        raise StartError(f"--{name} must be at most {high:g}, not {value:g}")
    if isinstance(value, str) and not _is_text(value):
        raise StartError(f"--{name} must be valid UTF-8 text without NUL, not {value!a}")
    if row["json_object"]:
        read_object(name, value)
    if choices and value not in choices:
        raise StartError(f"--{name} must be one of: {', '.join(filter(None, choices))}, not {value!r}")


def chosen(value: Any, choices: tuple[str, ...]) -> Any:
    """Returns the choice that a value names in upper or lower case, or the value itself if it names none."""
    if value in choices or not isinstance(value, str):
        return value
    return next((choice for choice in choices if choice.casefold() == value.casefold()), value)


def read_object(name: str, value: str) -> dict[str, Any]:
    """Parses the value of an option that is a JSON object; returns {} for an empty value. Raises StartError."""
    try:
        found = json.loads(value) if value else {}
    except (ValueError, RecursionError) as error:
        raise StartError(f"--{name} is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise StartError(f"--{name} is not a JSON object")
    return found


def _is_text(value: str) -> bool:
    """Returns whether a text has neither a NUL nor an unpaired surrogate, which JSON and argv may contain."""
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Options:
    """Base of the classes whose fields are options: one class for each feature, and a few for the core.

    They lack the generated methods of dataclasses (init, repr and eq are False), which took 6 ms of each start to
    create.
    """

    in_engine: ClassVar[bool] = False
    """Whether these options are sent to the engine process."""
    beside: ClassVar[str] = ""
    """The name of another feature, without which a server has none of these options; empty for none."""

    def __init__(self, **values: Any) -> None:
        """Sets the given options, and all others to their defaults. Raises StartError for a wrong value."""
        for row in fields(self):
            value = chosen(values.pop(row.name, row.default), row.metadata["choices"])
            check(row.name, value, row.metadata)
            object.__setattr__(self, row.name, value)
        if values:
            raise TypeError(f"{type(self).__name__} has no option {', '.join(sorted(values))}")

    @classmethod
    @cache
    def defaults(cls) -> Options:
        """Returns the options of the class at their defaults, an object that all configs share."""
        return cls()

    def check(self, config: Any) -> None:
        """Checks the options of a feature together, and against others in its Config. Raises StartError."""


# --- the options of the core

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
        "task of the model, such as text_generation, embeddings or speech2text; detected from its files if empty. If "
        "it is set, graph.pbtxt is not read",
    )

    # --- model
    model_path: str = _model(
        "", "directory of a model (OpenVINO IR), or a GGUF file. The demo models are served if no option names a model"
    )
    model_name: str = _model(
        "",
        "name of the model in the API; the name of its directory if empty. With model_repository_path, the only "
        "model to serve",
    )
    model_aliases: str = _model(
        "",
        "further names that requests may use for the model, separated by spaces; responses contain model_name",
        several=True,
        of_one=True,
    )
    chat_template: str = _model("", "chat template that replaces the model's own: a file, or the template itself")
    trust_request_chat_template: bool = _model(
        False, "let requests bring their own chat template, which is rendered in a sandbox without access to files"
    )
    chat_template_content_format: str = _model(
        "auto",
        "form in which the chat template receives the content of a message: one text (string), a list of parts "
        "(openai), or what the template expects (auto)",
        choices=("auto", "string", "openai"),
    )
    response_role: str = _model("assistant", "role of the messages that chat completions return")
    max_tokens_limit: int = _model(
        0,
        "largest max_tokens that a request may set, and the default for requests that set none; 0 for no limit",
        low=0,
    )
    clamp_max_tokens: bool = _model(
        False, "lower a max_tokens above max_tokens_limit to that limit, instead of answering 400"
    )
    best_of_limit: int = _model(20, "largest n and best_of that a request may set", low=1, high=512)
    max_logprobs: int = _model(
        20,
        "largest logprobs, top_logprobs and prompt_logprobs that a request may set; -1 for the whole vocabulary",
        low=-1,
    )
    generation_config_path: str = _model(
        "",
        "file with defaults for request fields, used instead of the model's generation_config.json; a relative path "
        "starts at the model's directory; none for no such defaults",
    )
    override_generation_config: str = _model(
        "", "JSON object with defaults for request fields; they override those of the file", json_object=True
    )
    default_chat_template_kwargs: str = _model(
        "", "JSON object with variables for the chat template; those of a request override them", json_object=True
    )
    max_model_len: int = _model(0, "context length of the model in tokens; 0 for the model's own", low=0)

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
        "batches or inputs that a model which generates no text computes in parallel; 0 means one, or what its task "
        "chooses. The pages of the tasks say when more help",
        low=0,
        high=256,
        not_of=TEXT_GENERATION.name,
    )
    pipeline_type: str = _engine(
        "AUTO",
        "what computes the model: the server's own engine on the CPU (PAGED), openvino-genai with continuous "
        "batching (LM_CB, VLM_CB) or one request at a time (LM, VLM, OMNI), or openvino-genai's speech recognition "
        "(ASR). AUTO chooses by model, device and options",
        choices=("AUTO", "LM", "LM_CB", "VLM", "VLM_CB", "OMNI", "PAGED", "ASR"),
    )
    target_device: str = _engine(
        "CPU",
        "OpenVINO device, such as CPU, GPU, AUTO:... or HETERO:...; auto means the best GPU, or the CPU if there is "
        "none",
    )
    plugin_config: str = _engine("", "OpenVINO properties as a JSON object", json_object=True)
    batch_invariant: bool = _engine(
        False,
        "give a greedy request the same answer in any batch: compute in f32, without OpenVINO's dynamic quantization, "
        "and with an f32 KV cache unless another precision is set; slower",
    )
    cache_size: int = _engine(0, "size of the KV cache in GB; 0 means that cache_memory_percent sets it", low=0)
    cache_memory_percent: int = _engine(
        25,
        "size of the KV caches of all models together, as a percentage of the memory that is free at the start; it "
        "is allocated as needed",
        low=1,
        high=90,
    )
    kv_cache_precision: str = _engine(
        "", "precision of the KV cache: u4, u8, f16, bf16 or f32; the device's default if empty"
    )
    key_cache_precision: str = _engine(
        "", "precision of the keys in the KV cache; if empty, kv_cache_precision, or one that fits that of the values"
    )
    value_cache_precision: str = _engine(
        "", "precision of the values in the KV cache; if empty, kv_cache_precision, or one that fits that of the keys"
    )
    max_num_batched_tokens: int = _engine(
        0,
        "maximum number of tokens computed in one step; fewer shorten the pauses of running answers during the "
        "prefill of long prompts; 0 means 256, and with PAGED up to 1024 as long as such a step takes at most a "
        "quarter of a second",
        low=0,
    )
    max_num_seqs: int = _engine(256, "maximum number of sequences that run at once; others wait", low=1, high=4096)
    priority_across_clients: bool = _engine(
        False,
        "compare the priority of a request with those of all clients' requests, not only with those of the same client",
    )
    dynamic_split_fuse: bool = _engine(True, "split long prompts over several steps")
    enable_prefix_caching: bool = _engine(
        True, "keep the KV cache of prompts, and reuse it for prompts that begin with the same tokens"
    )
    cache_interval_multiplier: int = _engine(
        0,
        "for hybrid models, KV blocks between saved states of a prompt; 0 means 64 with PAGED, and otherwise "
        "openvino-genai's default",
        low=0,
    )
    model_distribution_policy: str = _engine(
        "",
        "how several devices share the model; not set if empty",
        choices=("", "TENSOR_PARALLEL", "PIPELINE_PARALLEL"),
    )
    cache_dir: str = _engine("", "directory for compiled models, which load faster from there", path=DIRECTORY)
    engine_watchdog_s: float = _engine(
        120.0, "restart an engine that has work but has not responded for this many seconds", low=1
    )
    engine_load_timeout_s: float = _engine(600.0, "give up loading a model after this many seconds", low=1)
    without: str = _deployment(
        "",
        "features to leave out with their endpoints and options, separated by commas (lean_ovms features lists "
        "them); only on the command line and in the environment",
    )

    # --- limits
    max_queued_requests: int = _limits(
        256, "maximum number of requests that wait for the engine; more are rejected with 429", low=1
    )
    max_queued_requests_per_client: int = _limits(
        128, "maximum number of requests of one client that wait for the engine; more are rejected with 429", low=1
    )
    max_queued_tokens_per_client: int = _limits(
        1 << 20,
        "maximum number of prompt tokens in the waiting requests of one client; more are rejected with 429, or with "
        "400 if one request alone has more",
        low=1,
    )
    max_sequences_per_request: int = _limits(
        512, "maximum number of prompts in a request times its n; more are rejected with 400", low=1, high=1 << 17
    )

    # --- behaviour
    log_path: str = _behaviour("", "file that receives a copy of the log")
    log_format: str = _behaviour("text", "format of log lines", choices=("text", "json"))
    log_level: str = _behaviour(
        "INFO", "lowest level that is logged", choices=("TRACE", "DEBUG", "INFO", "WARNING", "ERROR")
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
        1.0, "seconds between checks for changes of config.json, graph.pbtxt or the API keys; 0 for no checks", low=0
    )
    options_file: str = _deployment(
        "", "JSON file with an object of options by name; the command line and the environment override it"
    )

    # --- repository
    source_model: str = _repository(
        "", "model to serve, as organisation/name; it is pulled from the hub if it is missing"
    )
    model_repository_path: str = _repository(
        "",
        "directory of models, all of which are served, or only model_name if that is set. source_model is pulled "
        "into it; without this option, into the user's cache",
        env="OVMS_MODEL_REPOSITORY_PATH",
    )

    # --- listen
    rest_port: int = _listen(8000, "TCP port; 0 for any free one", low=0, high=65535)
    rest_bind_address: str = _listen("0.0.0.0", "addresses to listen on, IPv4 or IPv6, separated by commas")
    reuse_port: bool = _listen(
        False,
        "share the port with another server that has this option, for restarts without a pause: the new server "
        "listens once its models are loaded",
    )
    unix_socket: str = _listen("", "path of a Unix socket to listen on instead of a TCP port")
    root_path: str = _listen("", "path prefix that a proxy adds, such as /llm; requests are served with and without it")
    api_key: str = _listen("", "the API key; only as an environment variable", env="API_KEY", secret=True)
    trusted_proxies: str = _listen(
        "", "proxies whose X-Forwarded-For is trusted, separated by commas: addresses, networks, unix or all"
    )
    protect_models: bool = _listen(False, "require the API key for the list of models, too")
    allowed_origins: str = _listen(
        "*",
        "origins of web pages that may use the server (CORS), separated by commas; localhost allows all pages of the "
        "client's own machine",
    )
    allowed_hosts: str = _listen(
        "",
        "names that the Host header may contain besides the machine's own names and addresses, separated by commas; "
        "others are rejected. * allows any; if empty, only requests that a web page could misuse are checked "
        "(docs/security.md)",
    )
    allowed_methods: str = _listen("*", "value of the header Access-Control-Allow-Methods (CORS)")
    allowed_headers: str = _listen("*", "value of the header Access-Control-Allow-Headers (CORS)")
    allow_credentials: bool = _listen(False, "send the header Access-Control-Allow-Credentials (CORS)")

    # --- behaviour
    neutralize_special_tokens: bool = _behaviour(
        False, "treat special tokens in messages of users and tools as plain text"
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
        15.0, "send a comment line when a stream has been silent for this many seconds; 0 for never", low=0
    )
    access_log: bool = _behaviour(True, "log one line for each request")
    log_prompts: bool = _behaviour(False, "log prompts as the model sees them; otherwise no text of a prompt is logged")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class LimitOptions(Options):
    """The limits that the front end enforces; those of the engine are in EngineOptions."""

    # --- limits
    max_header_bytes: int = _limits(
        65536, "maximum size of the request line and headers in bytes; larger ones are rejected with 431", low=1024
    )
    max_body_bytes: int = _limits(
        32 << 20, "maximum size of a request body in bytes; larger ones are rejected with 413", low=1024
    )
    max_body_memory_mb: int = _limits(
        512,
        "maximum memory in MB for the bodies of all running requests, three quarters of it for one client; others wait",
        low=1,
    )
    max_body_values: int = _limits(
        1 << 18,
        "maximum number of values in a JSON body, counted by its commas, colons and brackets; more are rejected with "
        "400",
        low=1 << 16,
    )
    max_connections: int = _limits(
        1024,
        "maximum number of open connections; one more closes the connection that has been idle longest, or is "
        "answered with 503 if none is idle",
        low=1,
    )
    max_connections_per_client: int = _limits(
        0,
        "maximum number of open connections of one address, or of one IPv6 network of 64 bits; 0 for three quarters "
        "of max_connections",
        low=0,
    )
    header_timeout_s: float = _limits(
        20.0, "seconds within which the headers of a request must arrive; later ones are rejected with 408", low=0.1
    )
    body_timeout_s: float = _limits(
        60.0, "seconds within which the body of a request must arrive; later ones are rejected with 408", low=0.1
    )
    keep_alive_timeout_s: float = _limits(75.0, "close a connection that has been idle for this many seconds", low=0.1)
    stream_stall_timeout_s: float = _limits(
        60.0, "cancel a request whose client has not read its response for this many seconds", low=0.1
    )
    request_timeout_s: float = _limits(0.0, "stop a generation after this many seconds; 0 for no limit", low=0)
    drain_timeout_s: float = _limits(30.0, "seconds that running requests have to finish when the server stops", low=0)
    drain_delay_s: float = _limits(
        0.0, "seconds after a stop signal during which readiness is 503 and requests are still served", low=0
    )
    template_timeout_s: float = _limits(
        2.0,
        "maximum CPU seconds for rendering a chat template; longer rendering is answered with 400",
        low=0.05,
        high=600,
    )
    max_prompts: int = _limits(
        128, "maximum number of prompts in one completions request; more are rejected with 400", low=1, high=4096
    )
