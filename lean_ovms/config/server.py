"""Options of the server: which models it serves, where it listens, what it stores and logs."""

from __future__ import annotations

from dataclasses import dataclass

from .options import Options, option


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ServerOptions(Options):
    """What one server has, whatever its models are."""

    # --- deployment
    config_path: str = option("", "config.json that lists the models to serve", group="deployment")
    file_system_poll_wait_seconds: float = option(
        1.0,
        "seconds between two looks whether config.json, a graph.pbtxt or api_key_file has changed; 0: never",
        group="deployment",
        low=0,
    )
    load_models: str = option(
        "auto",
        "when models are loaded. start: when the server starts; request: at the first request for each; "
        "auto: at requests if the server has several models from a repository or in groups, else at the "
        "start",
        group="deployment",
        choices=("auto", "start", "request"),
    )
    max_loaded_models: int = option(
        0,
        "most models, or groups of models, in memory at once; 0: one if there are groups, else as many "
        "as fit in the free memory",
        group="deployment",
        low=0,
    )
    options_file: str = option(
        "",
        "JSON file with an object of options by name; the command line and the environment win over it",
        group="deployment",
    )

    # --- repository
    source_model: str = option(
        "", "model of a hub to serve, as organisation/name; it is pulled if it is missing", group="repository"
    )
    model_repository_path: str = option(
        "",
        "directory of models: all of them are served, or with model_name that one. source_model is "
        "pulled into it, and without this option into the user's cache",
        group="repository",
        env="OVMS_MODEL_REPOSITORY_PATH",
    )
    pull: bool = option(False, "command: pull source_model and exit", group="repository")
    overwrite_models: bool = option(False, "pull a model again even if it is there", group="repository")
    gguf_filename: str = option(
        "",
        "GGUF file of source_model to pull: its name, of a split file that of the first part, or its quantization, "
        "such as Q4_K_M",
        group="repository",
    )
    draft_source_model: str = option(
        "",
        "draft model of a hub for speculative decoding, as organisation/name; it is pulled into the model's directory",
        group="repository",
    )
    weight_format: str = option(
        "", "weight format of a model that optimum-cli converts, such as int4; empty: int8", group="repository"
    )
    extra_quantization_params: str = option("", "further arguments of optimum-cli", group="repository")
    vocoder: str = option(
        "", "vocoder of a SpeechT5 that optimum-cli converts, such as microsoft/speecht5_hifigan", group="repository"
    )
    allow_runtime_pull: bool = option(
        False,
        "let clients pull models of the hub into model_repository_path, and delete them there (/api/pull, /api/delete)",
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
    rest_port: int = option(8000, "TCP port; 0: any free one", group="listen", low=0, high=65535)
    ollama_port: int = option(
        0,
        "a further TCP port, such as 11434, where Ollama's clients look for a server; 0: none",
        group="listen",
        low=0,
        high=65535,
    )
    rest_bind_address: str = option(
        "0.0.0.0", "addresses to listen on, IPv4 or IPv6, separated by commas", group="listen"
    )
    reuse_port: bool = option(
        False,
        "share the port with another server that has this option, so that a restart needs no pause: the new server"
        " listens once its models are loaded",
        group="listen",
    )
    unix_socket: str = option("", "path of a Unix socket to listen on, in place of a TCP port", group="listen")
    root_path: str = option(
        "", "prefix of paths that a proxy adds, such as /llm; requests are served with and without it", group="listen"
    )
    ssl_certfile: str = option("", "file with the chain of TLS certificates (PEM)", group="listen")
    ssl_keyfile: str = option("", "file with the private TLS key (PEM)", group="listen")
    ssl_ca_certs: str = option(
        "",
        "file with the certificates (PEM) of the authorities that clients' certificates must be from",
        group="listen",
    )
    ssl_cert_reqs: int = option(
        2,
        "with ssl_ca_certs: 2: clients need a certificate; 1: one that is sent is verified; 0: none is asked for",
        group="listen",
        low=0,
        high=2,
    )
    api_key_file: str = option(
        "",
        "file with the API key in its first line, or a JSON object with the hashes of several named keys, their roles "
        "and limits (docs/security.md); empty: the environment variable API_KEY is the key",
        group="listen",
    )
    api_key: str = option(
        "",
        "the API key; only as an environment variable. With a file of named keys: the one that this program's own "
        "commands send",
        group="listen",
        env="API_KEY",
        secret=True,
    )
    trusted_proxies: str = option(
        "",
        "proxies whose X-Forwarded-For is believed, separated by commas: addresses, networks, unix or all",
        group="listen",
    )
    api_key_usage_file: str = option(
        "",
        "file where the usage of named API keys is kept, which several servers may share; empty: it begins anew with "
        "each start",
        group="listen",
    )
    protect_models: bool = option(False, "require the API key for the list of models, too", group="listen")
    allowed_origins: str = option(
        "*",
        "origins of pages that may use the server (CORS), separated by commas; localhost: every page of "
        "the client's own machine",
        group="listen",
    )
    allowed_hosts: str = option(
        "",
        "names that the Host header may have, separated by commas, beside the machine's own names and "
        "addresses; others are refused. *: any; empty: checked only where a page could do harm "
        "(docs/security.md)",
        group="listen",
    )
    allowed_methods: str = option("*", "value of the header Access-Control-Allow-Methods (CORS)", group="listen")
    allowed_headers: str = option("*", "value of the header Access-Control-Allow-Headers (CORS)", group="listen")
    allow_credentials: bool = option(False, "send the header Access-Control-Allow-Credentials (CORS)", group="listen")

    # --- responses
    response_store: str = option(
        "",
        "where responses are stored: a SQLite file, or postgresql://... if several machines share them; "
        "empty: in memory",
        group="responses",
        private=True,
    )
    response_store_strict: bool = option(
        False, "do not start with a damaged store file; false: it is renamed, and a new one begins", group="responses"
    )
    response_store_max_age_s: float = option(
        2592000.0,
        "delete a response, or a conversation that is not used, after this many seconds (the default is "
        "30 days); 0: never",
        group="responses",
        low=0,
    )
    response_store_max_count: int = option(
        10000, "most stored responses, and as many conversations; the oldest are deleted", group="responses", low=1
    )
    response_store_max_mb: int = option(
        256, "largest size of the store in MB; the oldest entries are deleted", group="responses", low=1, high=1 << 20
    )
    reasoning_key_file: str = option(
        "",
        "file with the keys of sealed reasoning (reasoning.encrypted_content), a line each; the first seals, all open "
        "(docs/security.md); empty: a random key, until the server stops",
        group="responses",
    )

    # --- tools
    tool_server: str = option(
        "",
        "MCP servers whose tools responses may use (docs/operations.md): NAME=URL, or NAME=COMMAND of one that is "
        "started for a response and reached by its stdin; several are separated by blanks; it needs the extra mcp",
        group="tools",
        several=True,
        private=True,
    )
    max_tool_calls: int = option(32, "most calls of MCP tools in a response", group="tools", low=1)
    max_tool_sessions: int = option(
        16, "most responses that are connected to tool servers at a time; further ones wait", group="tools", low=1
    )
    max_tool_output: int = option(
        32768, "most characters of a tool's output; the rest is cut off", group="tools", low=100
    )
    tool_timeout_s: float = option(
        60.0, "seconds in which a tool server must list its tools, or answer a call", group="tools", low=0.1
    )

    # --- files
    files_path: str = option(
        "",
        "directory for the files that clients upload, and for batches and their results, which one server may use at a "
        "time; empty: no files and batches",
        group="files",
    )
    max_files_per_client: int = option(
        1000, "most files, and as many batches, of one client; more: 400", group="files", low=1
    )
    max_files_mb: int = option(
        4096, "MB for all files together; more: an upload is refused, and a batch fails", group="files", low=1
    )
    max_batch_lines: int = option(50000, "most requests of a batch; with more it fails", group="files", low=1)
    batch_concurrency: int = option(
        8, "most requests of all batches that are computed at the same time", group="files", low=1, high=1024
    )

    # --- behaviour
    strict_response_format: bool = option(
        False,
        "answer 400 if a response_format cannot be enforced, instead of adding a Warning header",
        group="behaviour",
    )
    neutralize_special_tokens: bool = option(
        False, "read special tokens in messages of users and tools as plain text", group="behaviour"
    )
    return_tokens_as_token_ids: bool = option(
        False, "write tokens in logprobs as token_id:NUMBER in every response", group="behaviour"
    )
    enable_force_include_usage: bool = option(
        False, "send token counts at the end of every stream, as with include_usage", group="behaviour"
    )
    enable_per_request_metrics: bool = option(
        False,
        "send timings with every response of chat and completions; in streams, together with the token counts",
        group="behaviour",
    )
    per_request_spec_decode_metrics: str = option(
        "",
        "send what became of draft tokens with every response of chat and completions that has one choice, as "
        "metrics.speculative_decoding; detailed: of each draft",
        group="behaviour",
        choices=("", "none", "summary", "detailed"),
    )
    sse_ping_s: float = option(
        15.0,
        "send a comment line when a stream has been silent for this many seconds; 0: never",
        group="behaviour",
        low=0,
    )
    web_page: bool = option(
        True, "serve a page for browsers at /, to chat and to see the server's load", group="behaviour"
    )
    access_log: bool = option(True, "log one line for each request", group="behaviour")
    log_prompts: bool = option(
        False, "log prompts as the model sees them; false: no text of a prompt gets into the log", group="behaviour"
    )
    metrics_enable: bool = option(False, "serve Prometheus metrics at /metrics", group="behaviour")
    metrics_list: str = option(
        "",
        "names of the metrics to serve, separated by commas (docs/operations.md lists them); empty: all",
        group="behaviour",
    )
    show_hidden_metrics_for_version: str = option(
        "",
        "vLLM's: any version, such as 0.9, serves metrics under their older names, too: vllm:gpu_cache_usage_perc, "
        "vllm:gpu_prefix_cache_queries_total, vllm:gpu_prefix_cache_hits_total",
        group="behaviour",
    )
    otlp_traces_endpoint: str = option(
        "",
        "collector that gets a span of each request to a model, by OTLP: a URL such as http://localhost:4317; it needs "
        "the extra otel",
        group="behaviour",
    )
