"""The manifest of the API of llama.cpp's server."""

from __future__ import annotations

from ...manifest import BodyRow, Command, Feature, PageRow, Route

FEATURE = Feature(
    name="llama_cpp",
    summary="serves the API of llama.cpp's server, for its clients and for code editors that fill in the middle",
    title="llama.cpp's server",
    reference="https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
    needs=("admin", "deployment", "chat", "pooling", "completions", "sampler_chain"),
    flags="flags.txt",
    body=BodyRow(
        names=(
            *("n_predict", "repeat_penalty", "n_cmpl", "reasoning_budget_tokens", "thinking_budget_tokens"),
            *("reasoning_format", "parse_tool_calls"),
        ),
        fields="other_names:FIELDS",
        rewrite="other_names:rewrite",
    ),
    harmless=("cache_prompt", "n_keep", "n_discard", "n_cache_reuse", "sse_ping_interval", "backend_sampling"),
    commands=(Command("stop", "NAME [URL]", "unload a model of a running server", "stop:main"),),
    routes=(
        Route("POST", "/apply-template", "api.apply_template:handle"),
        Route("POST", "/completion", "api.completion:handle_completion"),
        Route("POST", "/completions", "api.completion:handle_completion"),
        Route("POST", "/infill", "api.completion:handle_infill"),
        Route("POST", "/embedding", "api.embedding:handle"),
        Route("POST", "/embeddings", "api.embedding:handle"),
        Route("POST", "/models/load", "api.models:handle_load", changes=True, lasting="model"),
        Route("POST", "/models/unload", "api.models:handle_unload", changes=True, lasting="model"),
        Route("GET", "/props", "api.props:handle"),
    ),
    page=(
        PageRow("load", "/models/load"),
        PageRow("unload", "/models/unload"),
        PageRow("defaults", "/props"),
    ),
)
