"""`lean-ovms show MODEL`: prints whether and how a model would be served with these options. Loads nothing."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...cli.arguments import own, parse
from ...cli.commands import add_json, parser, print_json, table
from ...composition import TEXT_GENERATION, compose
from ...config import Config
from ...errors import ExitStatus, StartError
from ...models.chat_format import answer_format
from ...repository import model_config, model_dir, model_file
from ...repository.model_dir import ModelDir
from ...text.template.chat_template import ChatTemplate
from ...util.sizes import human_size
from ..deployment.desired import directory_of, repository_of

NOTES = f"""MODEL is a directory, {compose().a_model_file}or the name of a pulled model. All other options are those of
the server, such as --cache_size, --target_device or --tool_parser."""
TEMPLATE = re.compile(r'<(?:original_)?chat_template value="([^"]*)"')
"""Matches the chat template in a tokenizer's file."""

Rows = list[tuple[str, str]]


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Prints one fact per line. Raises StartError if there is no such model."""
    given, words, options = own(add_json(parser("show", NOTES)), argv)
    config = parse(["serve", *words, *options], environ)
    if not config.model_path:
        if not config.source_model:
            raise StartError(f"give a model: a directory, {compose().a_model_file}or the name of a pulled one")
        path = directory_of(config)
        if not path.is_dir():
            commands = config.composition.fetching_commands.values()
            fetch = "".join(f": lean_ovms {row.word} {shlex.join([*words, *options])}" for row in commands)
            raise StartError(f"{path.relative_to(repository_of(config))} has not been pulled{fetch}")
        config = config.replace(model_path=str(path), source_model="")
    with model_file.reading_once(config):
        found = facts(config)
    print_json(dict(found)) if given.json else print(table(found))
    return ExitStatus.OK


def facts(config: Config) -> Rows:
    """Returns the facts that are shown about a model, each as its name and its text. Raises StartError."""
    path = _file(config)
    config = config.with_model_file("").replace(model_path=str(path))
    directory = model_dir.read(config)
    kind = config.task or model_dir.detect_task(path) or TEXT_GENERATION.name
    described = model_config.read(path)
    rows: Rows = [("model", str(path)), ("task", kind), ("architecture", _architecture(described))]
    problem = "" if path.is_file() else model_config.short_file(path, needed_only=True)
    form = compose().format_of(path) if path.is_file() else None
    precision = model_config.precision(path) if form is None else form.name
    rows.append(
        ("weights", ", ".join(filter(None, (precision, human_size(model_config.weights_bytes(path)), problem))))
    )
    if kind != TEXT_GENERATION.name:
        context = model_config.context_length(described)
        return [*rows, ("context", f"{context} tokens")] if context else rows
    rows += _engine(config)
    return [*rows, *_chat(config, directory)]


def _file(config: Config) -> Path:
    """Returns the model's directory, or its model file: the one that is named, or else the first."""
    path, wanted = config.model_dir, config.model_file
    files = {str(file.relative_to(path)): file for file in model_file.models_in(path)}
    if wanted:
        name = wanted if wanted in files else model_file.quantized(files, wanted)
        if not name:
            none = f"no {' or '.join(row.name for row in compose().formats)} files"
            raise StartError(f"{path} has no {wanted}; it has {', '.join(files) or none}")
        return files[name]
    return next(iter(model_dir.single_files(path)), path)


def _architecture(described: Mapping[str, object]) -> str:
    names = described.get("architectures")
    shown = ", ".join(map(str, names)) if isinstance(names, list) else str(described.get("model_type") or "unknown")
    layers = described.get("num_hidden_layers")
    return f"{shown}, {layers} layers" if layers else shown


def _engine(config: Config) -> Rows:
    """Returns the facts about the engine and its memory. Raises StartError."""
    from ...engine.loading import settings  # late, because openvino takes 0.3 s to import
    from ...engine.loading.pipeline_choice import PAGED
    from ...engine.worker.text_model import choose

    engine, available = settings.on_device(config)
    choice = choose(engine, available)
    free = settings.free_memory_bytes()
    found = settings.resolve(engine, free, available, paged=choice.pipeline == PAGED)
    rows = [("engine", f"{choice.pipeline} on {engine.target_device}: {choice.reason}")]
    rows.append(("context", f"{found.context} tokens"))
    per_token = settings.kv_bytes_per_token(engine, model_config.read(config.model_dir), found.properties)
    if not per_token:
        return [
            *rows,
            ("KV cache", f"{human_size(found.cache_bytes)}; its config.json does not say how large a token is"),
        ]
    fitting = found.cache_bytes // per_token
    tokens = min(found.blocks * found.block_size or fitting, fitting)
    source = f"--cache_size {config.cache_size}" if config.cache_size else f"{human_size(free)} of memory are free"
    fit = f"{tokens} tokens fit, {human_size(tokens * per_token)} ({source})"
    precisions = "/".join(dict.fromkeys(settings.kv_precisions(engine, found.properties)))
    return [*rows, ("KV cache", f"{per_token} bytes a token in {precisions}; {fit}")]


def _chat(config: Config, directory: ModelDir) -> Rows:
    """Returns facts about the chat template and the parsers. Raises WrongOptions for an invalid --chat_template."""
    inside = _template_of_tokenizer(directory.path)
    template = ChatTemplate.load(directory, override=config.chat_template, from_tokenizer=inside)
    sources = {
        "--chat_template": config.chat_template,
        "chat_template.jinja": directory.chat_template,
        model_config.TOKENIZERS[0]: inside,
        "tokenizer_config.json": directory.fallback_template,
    }
    place = next((name for name, text in sources.items() if text), "none")
    if directory.path is not None and directory.path.is_file():
        form = compose().format_of(directory.path)
        place = f"in the {form.name} file" if form and place == "tokenizer_config.json" else place
    elif template.problem:
        place = f"{place}, without chat: {template.problem}"
    answers = answer_format(config, template.source, template.tool_source)
    parsers = [("tool parser", answers.tool_parser or "none"), ("reasoning parser", answers.reasoning_parser or "none")]
    return [("chat template", place), *parsers]


def _template_of_tokenizer(path: Path | None) -> str:
    try:
        text = (path / model_config.TOKENIZERS[0]).read_text("utf-8") if path is not None else ""
    except (OSError, UnicodeDecodeError):
        return ""
    found = TEMPLATE.search(text)
    return html.unescape(found[1]) if found else ""
