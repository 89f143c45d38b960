"""The manifest of commands for people."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import Options, option
from ...manifest import Command, Feature


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ListOptions(Options):
    """The option with which OVMS lists models."""

    list_models: bool = option(False, "command: print the models in model_repository_path and exit", group="repository")


FEATURE = Feature(
    name="terminal",
    summary="chats in the terminal, lists, explains and deletes models, measures a server, starts coding agents",
    formerly=("bench", "launch"),
    needs=("admin", "deployment"),
    options=ListOptions,
    commands=(
        Command(
            "run",
            "MODEL [PROMPT]",
            "start a model and chat with it in the terminal, or answer one prompt",
            "run:main",
            example="lean_ovms run OpenVINO/Qwen3-8B-int4-ov        a chat with it in the terminal",
        ),
        Command("chat", "[URL] [MODEL] [PROMPT]", "chat with a model of a running server", "chat:main"),
        Command(*("list", "", "list the pulled models", "list:names"), option="list_models", first="list:main"),
        Command("show", "MODEL", "show whether and how a model can be served", "show:main"),
        Command("rm", "NAME ...", "delete pulled models", "rm:main"),
        Command("ps", "[URL]", "list the models of a running server", "ps:main"),
        Command("launch", "AGENT [URL]", "start a coding agent that uses a running server", "launch:main"),
        Command("bench", "[URL] [MODEL]", "measure a running server with a small load", "bench:main"),
    ),
)
