"""The commands of OVMS that write its files: --configure, --add_to_config, --remove_from_config."""

from __future__ import annotations

import sys
from pathlib import Path

from ...config import Config
from ...errors import StartError
from ...repository import model_dir, model_file
from ..deployment.desired import require, write_settings
from . import config_editor, config_file
from .feature import CONFIG, GRAPH, OvmsFileOptions


def configure(config: Config) -> None:
    """Writes the graph of the model at model_path. Raises StartError."""
    require(config.model_path, "--configure needs --model_path")
    require(not config.model_name, "--configure and --model_name cannot be used together: a graph contains no name")
    path = Path(config.model_path)
    if path.is_file() and model_file.is_one(path):
        config = config.with_model_file(path.name)
        path = path.parent
    elif config.model_file:
        if not (path / config.model_file).is_file():
            raise StartError(f"{path / config.model_file} does not exist")
    else:
        model_dir.check(path, config.task)
    write_settings(config, path, {}, "")
    print(f"Graph: {GRAPH} created in: {path}")


def add(config: Config) -> None:
    """Adds the model to the list. Raises StartError."""
    file, path = _config_file(config, "add_to_config"), config.model_path
    if not path:
        require(config.model_repository_path, "--add_to_config needs --model_path or --model_repository_path")
        path = config_editor.relative_path(file.parent, Path(config.model_repository_path) / config.model_name)
    if not (file.parent / path).exists():
        print(f"lean_ovms: warning: {file.parent / path} does not exist yet", file=sys.stderr)
    changed = config_editor.add(file, config.model_name, path, config_editor.options_of(config))
    print(f"Config updated: {file}" if changed else f"{config.model_name} is already in {file}")


def remove(config: Config) -> None:
    """Removes the model from the list. Raises StartError."""
    file = _config_file(config, "remove_from_config")
    require(not config.model_path, "--model_path and --remove_from_config cannot be used together")
    if config_editor.remove(file, config.model_name):
        print(f"Config updated: {file}")
    else:
        names = ", ".join(config_editor.names(file)) or "no models"
        print(f"{config.model_name} is not in {file}, which has {names}")


def _config_file(config: Config, command: str) -> Path:
    """Returns the file to edit: the command's, --config_path's, or the repository's. Raises WrongOptions."""
    require(config.model_name, f"--{command} needs --model_name")
    options = config.of(OvmsFileOptions)
    given = options.add_to_config or options.remove_from_config
    named = options.config_path if given.lower() in ("true", "1") else given
    if named:
        return config_file.location(named)
    require(config.model_repository_path, f"--{command} needs --config_path")
    return Path(config.model_repository_path) / CONFIG
