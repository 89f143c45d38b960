"""Options of the server: which models it serves, where it listens, what it stores and logs."""

from __future__ import annotations

from dataclasses import dataclass

from .options import Options, option


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Options):
    """What one server has, whatever its models are."""

    # --- deployment
    config_path: str = option("", "config.json with the models to serve", group="deployment")
    file_system_poll_wait_seconds: float = option(
        1.0,
        "seconds between checks of config.json and graph.pbtxt for changes; 0: no checks",
        group="deployment",
        low=0,
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
    log_prompts: bool = option(
        False, "log the text of prompts, as rendered for the model; off: no log line has any", group="behaviour"
    )
    metrics_enable: bool = option(False, "serve Prometheus metrics at /metrics", group="behaviour")
    metrics_list: str = option(
        "", "metrics to serve, separated by commas, of those in docs/operations.md; empty: all", group="behaviour"
    )
