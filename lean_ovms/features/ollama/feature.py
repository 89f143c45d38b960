"""The manifest of Ollama's API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...config.options import Options, option
from ...errors import StartError
from ...manifest import ErrorForm, Feature, PageRow, Route


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class OllamaOptions(Options):
    """The option for the address at which clients of Ollama expect the server."""

    ollama_port: int = option(
        0,
        "second TCP port, such as 11434, on which Ollama's clients expect a server; 0 for none",
        group="listen",
        low=0,
        high=65535,
    )

    def check(self, config: Any) -> None:
        """Checks that the port differs from the server's. Raises StartError."""
        if self.ollama_port and (config.unix_socket or self.ollama_port == config.rest_port):
            raise StartError(
                "--ollama_port must differ from --rest_port, and cannot be used together with --unix_socket"
            )


PULLS = ("allow_runtime_pull", "model_repository_path")
"""The options that allow clients to pull and delete models."""
FEATURE = Feature(
    name="ollama",
    summary="serves Ollama's API",
    title="Ollama",
    reference="https://docs.ollama.com/api",
    needs=("deployment", "chat", "pooling", "completions", "sampler_chain"),
    options=OllamaOptions,
    ports=("ollama_port",),
    routes=(
        Route("GET", "/", "api.models:handle_root", auth="open", port="ollama_port"),
        Route("POST", "/api/show", "api.models:handle_show"),
        Route("GET", "/api/version", "api.models:handle_version", auth="open"),
        Route("GET", "/api/tags", "api.models:handle_tags", auth="models"),
        Route("GET", "/api/ps", "api.models:handle_ps", auth="models"),
        Route("POST", "/api/chat", "api.chat:handle_chat"),
        Route("POST", "/api/generate", "api.chat:handle_generate"),
        Route("POST", "/api/embed", "api.embed:handle"),
        Route("POST", "/api/embeddings", "api.embed:handle_one"),
        Route("POST", "/api/pull", "api.pull:handle_pull", changes=True, by_one=True),
        Route("DELETE", "/api/delete", "api.pull:handle_delete", changes=True, by_one=True),
        Route("POST", "/api/copy", "api.pull:handle_unsupported"),
        Route("POST", "/api/create", "api.pull:handle_unsupported"),
        Route("POST", "/api/push", "api.pull:handle_unsupported"),
        Route("GET", "/api/blobs/{id}", "api.pull:handle_unsupported"),
        Route("POST", "/api/blobs/{id}", "api.pull:handle_unsupported"),
    ),
    page=(PageRow("pull", "/api/pull", PULLS), PageRow("delete", "/api/delete", PULLS)),
    error_forms=(ErrorForm(name="OllamaError", body="errors:ollama_error", schema="errors:SCHEMA", paths=("/api/",)),),
)
