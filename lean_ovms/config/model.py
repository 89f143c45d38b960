"""Options of one model: its files, its name, its chat template, its limits for requests."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .options import Options, option

DEMO_MODEL = Path(__file__).parents[1] / "demo_model"
"""The small model that ships with the package; served when no option points to a model."""

DEMO_EMBED = Path(__file__).parents[1] / "demo_embed"
"""A small model for embeddings, served as demo-embed together with the demo model."""

POOLING_TASKS = ("embeddings", "rerank", "classify", "token_classify")
"""Tasks of models that compute vectors, scores or classes; OVMS has the first two."""
SPEECH_TO_TEXT = "speech2text"
"""Task of models that transcribe and translate speech, by OVMS's name."""
TEXT_TO_SPEECH = "text2speech"
"""Task of models that speak texts, by OVMS's name."""
OTHER_TASKS = (*POOLING_TASKS, SPEECH_TO_TEXT, TEXT_TO_SPEECH)
"""Tasks of models that do not generate text."""
SERVED_TASKS = ("text_generation", *OTHER_TASKS)
"""Tasks, by OVMS's names, that a model may have here; `repository/task.py` has all of them."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """What one model has; each model of a config file may set it."""

    # --- deployment
    task: str = option(
        "",
        "the model's task; empty: found from its files. If it is set, graph.pbtxt is not read",
        group="deployment",
    )

    # --- model
    model_path: str = option(
        "",
        "model directory (OpenVINO IR) or GGUF file; the demo models are served if no option names a model",
        group="model",
    )
    model_name: str = option(
        "",
        "name in the API; empty: the directory's name. With model_repository_path: which of its models to serve",
        group="model",
    )
    model_aliases: str = option(
        "",
        "more names of the model in the API, separated by spaces; responses carry model_name",
        group="model",
        several=True,
    )
    group_name: str = option(
        "", "models with the same group name are loaded and unloaded together; permanent: never unloaded", group="model"
    )
    model_idle_timeout_s: float = option(
        0.0,
        "unload the model after this many seconds without a request; the next request loads it again; 0: never",
        group="model",
        low=0,
    )
    chat_template: str = option(
        "", "chat template to use instead of the model's: a file, or the template itself", group="model"
    )
    trust_request_chat_template: bool = option(
        False, "let requests bring a chat_template; it runs in the sandbox, without access to files", group="model"
    )
    chat_template_content_format: str = option(
        "auto",
        "how the chat template gets the content of messages: as one string, or as a list of parts (openai); auto: "
        "as the template expects it",
        group="model",
        choices=("auto", "string", "openai"),
    )
    response_role: str = option("assistant", "role of the messages in responses of chat completions", group="model")
    tool_parser: str = option("", "parser of tool calls; empty: chosen by the chat template; none: off", group="model")
    reasoning_parser: str = option(
        "", "parser of reasoning; empty: chosen by the chat template; none: off", group="model"
    )
    enable_tool_guided_generation: bool = option(
        False, "enforce the schemas of tools with tool_choice auto, too", group="model"
    )
    max_tokens_limit: int = option(
        0, "largest max_tokens of a request, and its default; 0: no limit", group="model", low=0
    )
    clamp_max_tokens: bool = option(
        False, "lower a max_tokens above max_tokens_limit to the limit instead of answering 400", group="model"
    )
    best_of_limit: int = option(20, "largest n and best_of of a request", group="model", low=1, high=512)
    max_logprobs: int = option(
        20,
        "largest logprobs, top_logprobs and prompt_logprobs of a request; -1: the size of the vocabulary",
        group="model",
        low=-1,
    )
    generation_config_path: str = option(
        "",
        "file with defaults for requests, used instead of generation_config.json; relative to the model's "
        "directory; none: no defaults",
        group="model",
    )
    override_generation_config: str = option(
        "", "defaults for requests as a JSON object; they override those of the file", group="model", json_object=True
    )
    default_chat_template_kwargs: str = option(
        "",
        "variables for the chat template as a JSON object; those of a request override them",
        group="model",
        json_object=True,
    )
    lora_modules: str = option(
        "",
        "LoRA adapters, each served as a model of its own: name=path[,alpha] name=path ...",
        group="model",
        several=True,
    )
    max_loras: int = option(
        4, "LoRA adapters loaded at once; one more replaces the least recently used one", group="model", low=1
    )
    lora_idle_timeout_s: float = option(
        300.0, "stop the engine of an adapter after this many seconds without a request; 0: never", group="model", low=0
    )
    allow_runtime_lora: bool = option(
        False, "let clients load and unload adapters from the server's file system", group="model"
    )
    max_model_len: int = option(0, "context length in tokens; 0: the model's own", group="model", low=0)
    pooling: str = option(
        "",
        "how an embeddings model combines the vectors of the tokens; ALL: it keeps them all, for late interaction "
        "scores; empty: as the model's files say",
        group="model",
        choices=("", "CLS", "LAST", "MEAN", "MAX", "MEAN_SQRT_LEN", "WEIGHTED_MEAN", "ALL"),
    )
    normalize: str = option(
        "",
        "L2-normalize vectors; empty: as the model's files say, or true if they do not",
        group="model",
        choices=("", "true", "false"),
    )
    embed_long_inputs: str = option(
        "error",
        "what to do with inputs of embeddings that exceed the model's context length: error: answer 400; mean: "
        "average the vectors of their parts",
        group="model",
        choices=("error", "mean"),
    )
    truncate: bool = option(
        False, "cut inputs of embeddings to the model's context length instead of answering 400", group="model"
    )
    matryoshka: bool = option(False, "allow dimensions in embeddings requests whatever the model", group="model")
    max_position_embeddings: int = option(
        0, "context length of a reranker in tokens; 0: the model's own", group="model", low=0
    )
    max_allowed_chunks: int = option(
        10000, "documents, and chunks of long documents, in one rerank request", group="model", low=1
    )
    enable_word_timestamps: bool = option(
        False,
        "prepare a speech model for word timestamps at the start, not at the first request that wants them",
        group="model",
    )
    voices: str = option(
        "",
        "voices of a text-to-speech model in addition to those in its voices folder, as a JSON object from names "
        "to files",
        group="model",
        json_object=True,
    )
    speed_min: float = option(0.25, "lowest speed that a speech request may set", group="model", low=0.05, high=20)
    speed_max: float = option(4.0, "highest speed that a speech request may set", group="model", low=0.05, high=20)
    max_speech_characters: int = option(
        4096, "characters of text in one speech request", group="model", low=1, high=1 << 20
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
