"""Options of the server: which models it serves, where it listens, what clients may use, what it logs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from .options import Options, option

_deployment = partial(option, group="deployment")
_repository = partial(option, group="repository")
_listen = partial(option, group="listen")
_behaviour = partial(option, group="behaviour")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ServerOptions(Options):
    """What one server has, whatever its models are."""

    # --- deployment
    config_path: str = _deployment("", "config.json that lists the models to serve")
    file_system_poll_wait_seconds: float = _deployment(
        1.0,
        "seconds between two looks whether config.json, a graph.pbtxt or the API keys have changed; 0: never",
        low=0,
    )
    load_models: str = _deployment(
        "auto",
        "when models are loaded. start: when the server starts; request: at the first request for each; auto: at "
        "requests if the server has several models from a repository or in groups, else at the start",
        choices=("auto", "start", "request"),
    )
    max_loaded_models: int = _deployment(
        0,
        "most models, or groups of models, in memory at once; 0: one if there are groups, else as many as fit in the "
        "free memory",
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
    list_models: bool = _repository(False, "command: print the models in model_repository_path and exit")
    configure: bool = _repository(False, "command: write the graph.pbtxt of model_path from the options and exit")
    add_to_config: str = _repository(
        "", "command: add model_name to config_path, or to the file given here, and exit", bare="true"
    )
    remove_from_config: str = _repository(
        "", "command: remove model_name from config_path, or from the file given here, and exit", bare="true"
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
    ssl_certfile: str = _listen("", "file with the chain of TLS certificates (PEM)")
    ssl_keyfile: str = _listen("", "file with the private TLS key (PEM)")
    ssl_ca_certs: str = _listen(
        "", "file with the certificates (PEM) of the authorities that clients' certificates must be from"
    )
    ssl_cert_reqs: int = _listen(
        2,
        "with ssl_ca_certs: 2: clients need a certificate; 1: one that is sent is verified; 0: none is asked for",
        low=0,
        high=2,
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
    strict_response_format: bool = _behaviour(
        False, "answer 400 if a response_format cannot be enforced, instead of adding a Warning header"
    )
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
    metrics_enable: bool = _behaviour(False, "serve Prometheus metrics at /metrics")
    metrics_list: str = _behaviour(
        "", "names of the metrics to serve, separated by commas (docs/operations.md lists them); empty: all"
    )
    show_hidden_metrics_for_version: str = _behaviour(
        "",
        "vLLM's: any version, such as 0.9, serves metrics under their older names, too: vllm:gpu_cache_usage_perc, "
        "vllm:gpu_prefix_cache_queries_total, vllm:gpu_prefix_cache_hits_total",
    )


_limits = partial(option, group="limits")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class LimitOptions(Options):
    """The limits that the server itself keeps; those of the engine are in EngineOptions."""

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


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class WebSocketOptions(Options):
    """What bounds the WebSockets of each feature that has some."""

    max_realtime_session_s: float = option(
        3600.0,
        "close a realtime session, or a WebSocket of /responses, after this many seconds",
        group="realtime",
        low=1,
    )
