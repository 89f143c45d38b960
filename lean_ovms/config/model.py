"""Options of one model: its files, its name, its chat template, its limits for requests."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .options import Options, option

_deployment = partial(option, group="deployment")
_model = partial(option, group="model")

DEMO_MODEL = Path(__file__).parents[1] / "demo_model"
"""The small model that ships with the package; served when no option points to a model."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ModelOptions(Options):
    """What one model has; each model of a config file may set it."""

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
    group_name: str = _model(
        "", "models of the same group are loaded and unloaded together; those of the group permanent are never unloaded"
    )
    model_idle_timeout_s: float = _model(
        0.0,
        "unload the model after this many seconds without a request; the next request loads it again; 0: never",
        low=0,
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
    tool_parser: str = _model(
        "",
        "parser of tool calls, such as hermes3 (docs/coming_from.md lists them); empty: chosen by the chat template, "
        "or generic; none: tool calls stay in the text",
    )
    reasoning_parser: str = _model(
        "",
        "parser of reasoning, such as qwen3 (docs/coming_from.md lists them); empty: chosen by the chat template; "
        "none: reasoning stays in the text",
    )
    enable_tool_guided_generation: bool = _model(
        False,
        "make tool calls follow the schemas of the tools also where the model is free to call or not (tool_choice "
        "auto)",
    )
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
    max_speech_characters: int = _model(
        4096, "most characters of text in one speech request; more: 400", low=1, high=1 << 20, tasks=("text2speech",)
    )

    @property
    def model_dir(self) -> Path:
        """Directory of the model."""
        return Path(self.model_path) if self.model_path else DEMO_MODEL

    @property
    def served_name(self) -> str:
        """The model's name in the API."""
        if self.model_name:
            return self.model_name
        return os.path.basename(os.path.realpath(self.model_dir)) if self.model_path else "demo"

    @property
    def served_names(self) -> tuple[str, ...]:
        """All its names in the API, served_name first."""
        return tuple(dict.fromkeys((self.served_name, *self.model_aliases.split())))
