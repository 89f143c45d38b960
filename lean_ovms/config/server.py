"""Options of the server: which models it serves, where it listens, what it stores and logs."""

from __future__ import annotations

from dataclasses import dataclass

from .options import Options, option


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Options):
    """What one server has, whatever its models are."""

    # --- deployment
    config_path: str = option("", "config.json that lists the models to serve", group="deployment")
    file_system_poll_wait_seconds: float = option(
        1.0,
        "seconds between checks whether config.json and graph.pbtxt have changed; 0: no checks",
        group="deployment",
        low=0,
    )
    load_models: str = option(
        "auto",
        "when models are loaded: start: when the server starts; request: by the first request for each; auto: by "
        "requests if the server has several models from a repository or in groups, else at the start",
        group="deployment",
        choices=("auto", "start", "request"),
    )
    max_loaded_models: int = option(
        0,
        "models, or groups of models, in memory at once; 0: one if there are groups, else as many as fit in free "
        "memory",
        group="deployment",
        low=0,
    )
    options_file: str = option(
        "",
        "JSON file with an object of options by name; the command line and the environment override it",
        group="deployment",
    )

    # --- repository
    source_model: str = option(
        "", "model of a hub (organisation/name) to serve; it is pulled if it is missing", group="repository"
    )
    model_repository_path: str = option(
        "",
        "directory of models: all are served, or only model_name; source_model is pulled into it, or without it "
        "into the user's cache",
        group="repository",
        env="OVMS_MODEL_REPOSITORY_PATH",
    )
    pull: bool = option(False, "command: pull source_model and exit", group="repository")
    overwrite_models: bool = option(False, "pull models again that are already there", group="repository")
    gguf_filename: str = option("", "GGUF file of source_model; of a split file the first part", group="repository")
    draft_source_model: str = option(
        "", "draft model of a hub for speculative decoding; it is pulled into the model's directory", group="repository"
    )
    weight_format: str = option(
        "", "weight format for models that optimum-cli converts; empty: int8", group="repository"
    )
    extra_quantization_params: str = option("", "additional arguments for optimum-cli", group="repository")
    vocoder: str = option(
        "", "vocoder for a SpeechT5 that optimum-cli converts, such as microsoft/speecht5_hifigan", group="repository"
    )
    allow_runtime_pull: bool = option(
        False,
        "let clients pull models of the hub into model_repository_path, and delete them: /api/pull, /api/delete",
        group="repository",
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
    ollama_port: int = option(
        0,
        "a further TCP port, on which Ollama's clients look for a server (11434); 0: none",
        group="listen",
        low=0,
        high=65535,
    )
    rest_bind_address: str = option(
        "0.0.0.0", "addresses to listen on, separated by commas; IPv4 or IPv6", group="listen"
    )
    reuse_port: bool = option(
        False,
        "share the port with another server that has this option, so that a restart needs no pause: the new server"
        " listens once its models are loaded",
        group="listen",
    )
    unix_socket: str = option("", "path of a Unix socket to listen on instead of TCP", group="listen")
    root_path: str = option(
        "", "path prefix that a proxy adds, such as /llm; requests are served with and without it", group="listen"
    )
    ssl_certfile: str = option("", "TLS certificate chain (PEM)", group="listen")
    ssl_keyfile: str = option("", "TLS private key (PEM)", group="listen")
    api_key_file: str = option(
        "", "file whose first line is the API key; empty: the environment variable API_KEY", group="listen"
    )
    api_key: str = option("", "API key; only as an environment variable", group="listen", env="API_KEY", secret=True)
    trusted_proxies: str = option(
        "", "proxies whose X-Forwarded-For is believed: addresses, networks, unix or all", group="listen"
    )
    protect_models: bool = option(False, "require the API key for the model list, too", group="listen")
    allowed_origins: str = option(
        "*", "CORS: allowed origins, separated by commas; localhost: pages of the client's own machine", group="listen"
    )
    allowed_hosts: str = option(
        "",
        "names that the Host header may have, separated by commas, besides the machine's own names and addresses; "
        "other names are refused; *: any; empty: checked only where pages could do harm (docs/security.md)",
        group="listen",
    )
    allowed_methods: str = option("*", "CORS: Access-Control-Allow-Methods", group="listen")
    allowed_headers: str = option("*", "CORS: Access-Control-Allow-Headers", group="listen")
    allow_credentials: bool = option(False, "CORS: Access-Control-Allow-Credentials", group="listen")

    # --- responses
    response_store: str = option(
        "",
        "SQLite file for stored responses, or postgresql://... if several machines share them; empty: memory",
        group="responses",
        private=True,
    )
    response_store_strict: bool = option(
        False, "do not start with a damaged store file; off: it is renamed, and a new one begins", group="responses"
    )
    response_store_max_age_s: float = option(
        2592000.0,
        "delete a response, or an unused conversation, after this many seconds (30 days); 0: never",
        group="responses",
        low=0,
    )
    response_store_max_count: int = option(
        10000, "stored responses, and as many conversations; the oldest are deleted", group="responses", low=1
    )
    response_store_max_mb: int = option(
        256, "size of the store in MB; the oldest entries are deleted", group="responses", low=1, high=1 << 20
    )

    # --- behaviour
    strict_response_format: bool = option(
        False,
        "answer 400 to a response_format that cannot be enforced, instead of a Warning header",
        group="behaviour",
    )
    neutralize_special_tokens: bool = option(
        False, "read special tokens in the text of users and tools as plain text", group="behaviour"
    )
    return_tokens_as_token_ids: bool = option(
        False, "name the tokens in logprobs token_id:NUMBER in every response", group="behaviour"
    )
    enable_force_include_usage: bool = option(
        False, "send token counts at the end of every stream, as include_usage does", group="behaviour"
    )
    enable_per_request_metrics: bool = option(
        False,
        "send timings with each response of chat and completions; in streams, with the token counts",
        group="behaviour",
    )
    sse_ping_s: float = option(
        15.0, "send a comment line after this many seconds of silence in a stream; 0: off", group="behaviour", low=0
    )
    web_page: bool = option(True, "serve a chat page for browsers at /", group="behaviour")
    access_log: bool = option(True, "log one line for each request", group="behaviour")
    log_prompts: bool = option(
        False, "log prompts as they are rendered for the model; off: the log has no text of prompts", group="behaviour"
    )
    metrics_enable: bool = option(False, "serve Prometheus metrics at /metrics", group="behaviour")
    metrics_list: str = option(
        "",
        "names of the metrics to serve, separated by commas (docs/operations.md lists them); empty: all",
        group="behaviour",
    )
