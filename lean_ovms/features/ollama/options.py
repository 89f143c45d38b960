"""The options of Ollama's API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...config.options import Options, option
from ...errors import StartError


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class OllamaOptions(Options):
    """Where clients of Ollama find the server."""

    ollama_port: int = option(
        0,
        "a further TCP port, such as 11434, where Ollama's clients look for a server; 0: none",
        group="listen",
        low=0,
        high=65535,
    )

    def check(self, config: Any) -> None:
        """Checks that the port is another one than the server's. Raises StartError."""
        if self.ollama_port and (config.unix_socket or self.ollama_port == config.rest_port):
            raise StartError("--ollama_port is a port besides --rest_port, and not with --unix_socket")
