"""Options of one model: its files, its name, its chat template, its limits for requests."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .options import Options, option

DEMO_MODEL = Path(__file__).parents[1] / "demo_model"
"""The small model that ships with the package; served when no option points to a model."""

DEMO_EMBED = Path(__file__).parents[1] / "demo_embed"
"""A small model for embeddings that is served beside it, as demo-embed."""

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
        "task of the model, empty: from its files; if given, graph.pbtxt is not read",
        group="deployment",
    )

    # --- model
    model_path: str = option(
        "",
        "model directory (OpenVINO IR) or GGUF file; without any option for models the demo models are served",
        group="model",
    )
    model_name: str = option(
        "",
        "name in the API, empty: the directory's name; with model_repository_path: the model in it to serve",
        group="model",
    )
    model_aliases: str = option(
        "",
        "further names of the model in the API, separated by blanks; answers carry model_name",
        group="model",
        several=True,
    )
    group_name: str = option("", "models loaded and unloaded together; permanent: never unloaded", group="model")
    model_idle_timeout_s: float = option(
        0.0, "seconds before an unused model is unloaded; a request loads it again; 0: never", group="model", low=0
    )
    chat_template: str = option("", "chat template instead of the model's, a file or the text itself", group="model")
    trust_request_chat_template: bool = option(
        False, "allow chat_template in requests; such a template runs in the sandbox, without files", group="model"
    )
    chat_template_content_format: str = option(
        "auto", "form of message content for the chat template", group="model", choices=("auto", "string", "openai")
    )
    response_role: str = option("assistant", "role of the messages in answers of chat completions", group="model")
    tool_parser: str = option("", "tool parser; empty: from the chat template; none: off", group="model")
    reasoning_parser: str = option("", "reasoning parser; empty: from the chat template; none: off", group="model")
    enable_tool_guided_generation: bool = option(
        False, "enforce tool schemas also with tool_choice auto", group="model"
    )
    max_tokens_limit: int = option(0, "largest and default max_tokens of a request; 0: no limit", group="model", low=0)
    clamp_max_tokens: bool = option(
        False, "take max_tokens above max_tokens_limit as the limit instead of a 400", group="model"
    )
    best_of_limit: int = option(20, "largest n and best_of of a request", group="model", low=1, high=512)
    max_logprobs: int = option(
        20, "largest top_logprobs, logprobs and prompt_logprobs of a request; -1: the vocabulary", group="model", low=-1
    )
    generation_config_path: str = option(
        "",
        "file of request defaults to use instead of generation_config.json, relative to the model; none: no defaults",
        group="model",
    )
    override_generation_config: str = option(
        "", "request defaults as a JSON object, above those of the file", group="model", json_object=True
    )
    default_chat_template_kwargs: str = option(
        "", "variables for the chat template as a JSON object, below those of requests", group="model", json_object=True
    )
    lora_modules: str = option(
        "", "LoRA adapters, each served as a model: name=path[,alpha] name=path ...", group="model", several=True
    )
    max_loras: int = option(
        4, "LoRA adapters loaded at once; the least recently used one is unloaded for another", group="model", low=1
    )
    lora_idle_timeout_s: float = option(
        300.0, "seconds before the engine of an unused adapter is stopped; 0: never", group="model", low=0
    )
    allow_runtime_lora: bool = option(
        False, "allow clients to load and unload adapters from the server's file system", group="model"
    )
    max_model_len: int = option(0, "context length in tokens; 0: the model's own", group="model", low=0)
    pooling: str = option(
        "",
        "how the vectors of an embeddings model's tokens become one; ALL: they stay apart, for scores by late "
        "interaction; empty: from its files",
        group="model",
        choices=("", "CLS", "LAST", "MEAN", "MAX", "MEAN_SQRT_LEN", "WEIGHTED_MEAN", "ALL"),
    )
    normalize: str = option(
        "",
        "L2-normalize vectors; empty: from the model's files, else true",
        group="model",
        choices=("", "true", "false"),
    )
    embed_long_inputs: str = option(
        "error",
        "inputs of embeddings beyond the model's window: error: a 400; mean: of the vectors of their pieces",
        group="model",
        choices=("error", "mean"),
    )
    truncate: bool = option(False, "cut inputs of embeddings to the model's window instead of a 400", group="model")
    matryoshka: bool = option(False, "allow dimensions in embeddings requests for any model", group="model")
    max_position_embeddings: int = option(0, "window of a reranker in tokens; 0: the model's own", group="model", low=0)
    max_allowed_chunks: int = option(
        10000, "documents, and chunks of them, in one rerank request", group="model", low=1
    )
    enable_word_timestamps: bool = option(
        False, "prepare a speech model for word times at the start instead of at the first request", group="model"
    )
    voices: str = option(
        "",
        "voices of a text-to-speech model besides those in its folder voices, as a JSON object: name to file",
        group="model",
        json_object=True,
    )
    speed_min: float = option(0.25, "lowest speed of a request for speech", group="model", low=0.05, high=20)
    speed_max: float = option(4.0, "highest speed of a request for speech", group="model", low=0.05, high=20)
    max_speech_characters: int = option(
        4096, "characters of the text of one request for speech", group="model", low=1, high=1 << 20
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
