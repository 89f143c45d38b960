"""Reads the files of a model directory other than weights: generation defaults, chat templates, special tokens.

The front end reads them once, at the start. A wrong path is the most common mistake at the first start, so errors name
what is missing and what is there instead. Imports neither the engine nor jinja2.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..composition import Composition, compose
from ..config.options import ModelOptions, read_object
from ..errors import StartError
from ..manifest import TaskRow
from ..util.files import NOT_REGULAR, ModelFiles, exists, read_text
from . import model_file
from .model_config import TEXT_NETWORKS, TOKENIZERS, networks

HUB_NAME = re.compile(r"[\w.-]*\w[\w.-]*/[\w.-]+")
"""Matches a path that may be meant as ORGANISATION/NAME on a hub if it does not exist."""

MISSING = "Its files are missing or incomplete."
UNREADABLE = "Its files cannot be read."
"""Reasons of errors that clients may see."""

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The names under which transformers passes special tokens to a chat template."""
TOKENIZER = (
    *("tokenizer_class", "add_bos_token", "add_eos_token", "add_prefix_space", "clean_up_tokenization_spaces"),
    *("split_special_tokens", "added_tokens_decoder", "errors"),
)
"""The members of tokenizer_config.json that are kept for clients that tokenize themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDir:
    """The content of a model's files other than its networks."""

    path: Path | None = None
    """The directory, or the file of a single-file model; None if there is no model at all."""
    generation_config: dict[str, Any] = field(default_factory=dict)
    """The members of generation_config.json, or the sampling defaults in a single-file model."""
    config: dict[str, Any] = field(default_factory=dict)
    """The members of config.json; empty for a single-file model."""
    chat_template: str = ""
    """The content of chat_template.jinja; empty if there is none."""
    fallback_template: str = ""
    """The template in the JSON files, used if the tokenizer has none; empty if there is none."""
    tool_template: str = ""
    """The template for requests with tools; empty if it is the same."""
    special_tokens: dict[str, str] = field(default_factory=dict)
    """The texts of special tokens by name, such as "bos_token"."""
    tokenizer: dict[str, Any] = field(default_factory=dict)
    """The members of tokenizer_config.json named in TOKENIZER, and additional_special_tokens as texts."""


def read(config: ModelOptions) -> ModelDir:
    """Reads the files of a model. Raises StartError if there is no model, or one of its files is not valid."""
    path, generation_config = config.model_dir, config.generation_config_path
    above = read_object("override_generation_config", config.override_generation_config)
    if os.path.isfile(path) and (file := model_file.of(path)) is not None:
        known = file.defaults()
        defaults = _generation_config(path.parent, generation_config) if generation_config else known.sampling
        return ModelDir(
            path=path,
            generation_config=defaults | above,
            fallback_template=known.chat_template,
            tool_template=known.tool_template,
        )
    check(path, config.task)
    tokenizer = _json(path / "tokenizer_config.json")
    templates = [_json(path / name).get("chat_template") for name in ("chat_template.json", "processor_config.json")]
    templates.append(tokenizer.get("chat_template"))
    return ModelDir(
        path=path,
        generation_config=_generation_config(path, generation_config) | above,
        config=_json(path / "config.json"),
        chat_template=_text(path / "chat_template.jinja"),
        fallback_template=next((text for entry in templates if (text := _template(entry, "default"))), ""),
        tool_template=_text(path / "additional_chat_templates" / "tool_use.jinja")
        or _template(tokenizer.get("chat_template"), "tool_use", alone=False),
        special_tokens={name: text for name in SPECIAL_TOKENS if (text := token_text(tokenizer.get(name)))},
        tokenizer=_tokenizer(tokenizer),
    )


def _tokenizer(config: dict[str, Any]) -> dict[str, Any]:
    found = {name: config[name] for name in TOKENIZER if config.get(name) is not None}
    if isinstance(more := config.get("additional_special_tokens"), list):
        found["additional_special_tokens"] = [text for entry in more if (text := token_text(entry))]
    return found


def _generation_config(path: Path, other: str) -> dict[str, Any]:
    if other == "none":
        return {}
    file = path / (other or "generation_config.json")
    if other and not os.path.isfile(file):
        raise StartError(f"--generation_config_path: no such file {file}", reason="One of its files is missing.")
    return _json(file)


def single_files(path: Path) -> list[Path]:
    """Returns the model files in a folder that can be served; none if the folder has an OpenVINO model."""
    other = not os.path.isdir(path) or any(os.path.isfile(path / name) for name in networks())
    return [] if other else model_file.models_in(path)


def check(path: Path, task: str = "") -> None:
    """Raises StartError unless the path is a directory with an OpenVINO model for the task and a tokenizer."""
    try:
        _check(path, task)
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}", reason=UNREADABLE) from None


def detect_task(path: Path, composition: Composition | None = None) -> str:
    """Returns the task that a model's files show, or ""; a composition limits it to the tasks of its features."""
    if (file := model_file.of(path)) is not None:
        return file.task()
    files = ModelFiles.of(path)
    return next((row.name for row in (composition or compose()).tasks if row.recognizes(files)), "")


def _check(path: Path, task: str) -> None:
    if not exists(path):
        kinds = f"a model's directory, {compose().a_model_file}or the name of a model on the hub (ORGANISATION/NAME)"
        hub = f"give {kinds}, as source_model"
        if HUB_NAME.fullmatch(str(path)):
            hub = f"if {path} is a model on the hub, give it as source_model"
        raise StartError(f"there is no model at {path}: {model_file.absent(path)}; {hub}", reason=MISSING)
    if not path.is_dir():
        others = " or ".join(f"a {row.suffix} file" for row in compose().formats)
        message = f"{path} is not a model directory" + f" (nor {others})" * bool(others)
        inside = any((path.parent / name).is_file() for name in networks())
        raise StartError(message + f"; give its directory, {path.parent}" * inside, reason=MISSING)
    _require_regular_files(path)
    if missing := missing_in(path, task):
        message = f"{path} is not a complete OpenVINO model: {', '.join(missing)} missing; {_describe(path)}"
        raise StartError(message, reason=MISSING)


def missing_in(path: Path, task: str = "") -> list[str]:
    """Returns the names of the files that a model directory lacks. Raises OSError."""
    names = {entry.name for entry in path.iterdir() if entry.is_file()}
    # An unreadable folder, such as a volume's lost+found, contains nothing of the model, and glob skips it.
    names |= {f"{file.parent.name}/{file.name}" for file in path.glob("*/*")}
    return missing_files(names, task or detect_task(path))


def is_checkpoint(path: Path) -> bool:
    """Returns whether a directory has weights in the formats of the libraries whose models optimum-cli can convert."""
    return any(any(path.glob(form)) for form in ("*.safetensors", "pytorch_model*.bin", "*.pth"))


def missing_files(names: Collection[str], task: str = "") -> list[str]:
    """Returns the names of the files that a model lacks, given those that it has, and its task if it is known."""
    for row in compose().tasks:
        if row.missing is not None and (row.name == task or _shows(names, row)):
            return row.missing(names)
    missing = [name for name in TOKENIZERS if name not in names]
    return missing if any(name in names for name in TEXT_NETWORKS) else [TEXT_NETWORKS[0], *missing]


def _shows(names: Collection[str], row: TaskRow) -> bool:
    """Returns whether the names of a model's files reveal a task."""
    if row.shown_by:
        return any(re.fullmatch(row.shown_by, name) for name in names)
    return bool(row.networks) and row.networks[0] in names


def _require_regular_files(path: Path) -> None:
    """Raises StartError for a FIFO, socket or device in the directory, on which the libraries would wait."""
    with os.scandir(path) as entries:
        for entry in entries:
            if os.path.exists(entry.path) and not (entry.is_file() or entry.is_dir()):
                raise StartError(f"{entry.path} cannot be read: {NOT_REGULAR}", reason=UNREADABLE)


def _describe(path: Path) -> str:
    """Describes what a directory contains instead of a model, with the usual reasons."""
    if (path / "model_index.json").is_file():
        return "it looks like an image generation pipeline that was not exported to OpenVINO"
    if any(path.glob("[0-9]*/*.xml")):
        return "it looks like a versioned model for classical inference, which this server does not support"
    if is_checkpoint(path):
        return (
            "it looks like a Hugging Face checkpoint; convert it with: "
            f"optimum-cli export openvino --model {shlex.quote(str(path))} {shlex.quote(f'{path.name}-ov')}"
        )
    inside = sorted(entry.name for entry in path.iterdir())
    if below := sorted(entry.parent for entry in path.glob(f"*/{TEXT_NETWORKS[0]}")):
        return f"its subdirectory {below[0].name} contains a model: give {below[0]}, or --model_repository_path {path}"
    content = f"it contains {', '.join(inside[:8])}{', ...' if len(inside) > 8 else ''}" if inside else "it is empty"
    return f"{content}; export a model with: optimum-cli export openvino --model NAME {shlex.quote(str(path))}"


def _text(file: Path) -> str:
    """Returns the content of a text file; "" if it does not exist."""
    try:
        return read_text(file, "utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise StartError(f"{file} cannot be read: {error.strerror}", reason=UNREADABLE) from None
    except UnicodeDecodeError as error:
        raise StartError(f"{file} cannot be read: {error}") from error


def _json(file: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; {} if it does not exist."""
    text = _text(file)
    if not text:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StartError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise StartError(f"{file} must contain a JSON object")
    return value


def _template(entry: Any, name: str, alone: bool = True) -> str:
    """Returns a chat template: a string if `alone`, or the item of this name in a list of {name, template}."""
    if isinstance(entry, str):
        return entry if alone else ""
    rows = entry if isinstance(entry, list) else []
    found = (row.get("template") for row in rows if isinstance(row, dict) and row.get("name") == name)
    return next((text for text in found if isinstance(text, str)), "")


def token_text(token: Any) -> str:
    """Returns the text of a special token, which is a string or an object with the member `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""
