"""The hub as the source of the command line's models: source_model is pulled, and a checkpoint is converted."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from ...config import Config
from ...engine.client import prestart
from ...manifest import INPUT_EMBEDDINGS
from ...repository import model_dir
from ..deployment.desired import check_task, require, served, write_settings
from . import pull as pulls
from .client import open_hub
from .feature import HubOptions

CONVERSION = ("weight_format", "extra_quantization_params")
"""Options of a conversion."""


class HubSource:
    """A source of models: the hub that the environment names."""

    def check(self, config: Config, command: str) -> None:
        """Checks the options of the hub for a command. Raises WrongOptions."""
        pulled = config.source_model or command == "pull"
        if pulled:
            require(config.source_model or config.model_name, "--pull needs --source_model ORGANISATION/NAME")
            check_task(config)
        for name in (*CONVERSION, "vocoder", "revision"):
            converted = name in CONVERSION and config.model_path and not command
            require(pulled or converted or not config.given(name), f"--{name} needs --source_model")

    def fetch(self, config: Config) -> Config:
        """Pulls source_model, unless it is there, and returns the options that serve it. Raises StartError."""
        prestart.discard()  # frees the process that was started ahead, because a download takes minutes
        options = config.of(HubOptions)
        source = pulls.check_name(config.source_model or config.model_name)
        repository = Path(config.model_repository_path)
        target = repository / pulls.directory_name(source, options.revision)
        file = pulls.file_name(source, target, config.model_file, open_hub, options.revision)
        config = config.with_model_file(file)
        request = pulls.PullRequest(
            source=source,
            repository=repository,
            target=target,
            revision=options.revision,
            file=file,
            images=reads_images(config),
            overwrite=options.overwrite_models,
            weight_format=options.weight_format,
            extra=_arguments(options),
            task=config.task,
            bar=True,
        )
        pulls.pull(request, open_hub)
        companions: dict[str, str] = {}
        for row in config.composition.companions:
            if given := config.value(row.source):
                name = pulls.check_name(given)
                path = target / companions.setdefault(row.path, name.replace("/", "-"))
                companion = replace(request, source=name, target=path, revision="", file="")
                pulls.pull(replace(companion, weight_format="", extra="", task=""), open_hub)
        return write_settings(config, target, companions, name=config.model_name or source)

    def directory(self, config: Config) -> str:
        """Returns the path of source_model's directory in the repository, for its revision. Raises StartError."""
        revision = config.of(HubOptions).revision
        return pulls.directory_name(config.source_model, revision) if revision else config.source_model

    def prepare(self, config: Config) -> Config:
        """Converts the model at model_path, if necessary, and returns the options that serve it. Raises StartError."""
        path, options = config.model_dir, config.of(HubOptions)
        if not path.is_dir() or not model_dir.missing_in(path, config.task):
            given = [name for name in CONVERSION if config.value(name)]
            require(not given, f"--{''.join(given[:1])} is only for models that have to be converted")
            return config
        prestart.discard()
        found = pulls.prepare(path, config.task, options.weight_format, options.extra_quantization_params)
        name = config.model_name or path.resolve().name
        return served(config, {"model_path": str(found), "model_name": name}) if found != path else config


def run_pull(config: Config) -> None:
    """Runs the command that pulls a model, and prints the model's path. Raises StartError."""
    found = HubSource().fetch(config)
    name = config.source_model or config.model_name
    if sys.stdout.isatty():
        print(f"{name} is in {found.model_path}; start a chat with it by: lean_ovms run {name}")
        return
    print(f"Model: {name} downloaded to: {found.model_path}")
    if (settings := config.composition.settings) is not None:
        print(f"Graph: {settings.file} created in: {found.model_path}")


def reads_images(config: Config) -> bool:
    """Returns whether the mmproj file of a model file should be found, as no option names or excludes it."""
    options = (row.vision_option for row in config.composition.formats)
    named = any(option and config.value(option) for option in options)
    return INPUT_EMBEDDINGS in config.composition.parts and not named


def _arguments(options: HubOptions) -> str:
    """Returns the arguments of optimum-cli: those of the options, and that of the vocoder."""
    given = options.extra_quantization_params
    if not options.vocoder:
        return given
    return f"{given} --model-kwargs {shlex.quote(json.dumps({'vocoder': options.vocoder}))}".strip()
