"""Provides OVMS's files as options of models to the core, and writes the graph of a model."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..._version import __version__
from ...composition import TEXT_GENERATION
from ...config import Config
from ...errors import StartError
from ...repository import model_dir
from ...util import atomic_file
from ...util.files import file_stat, read_text
from ..deployment.desired import DesiredState, ModelSpec, served
from . import config_file, graph, graph_writer, presets
from .feature import GRAPH

log = logging.getLogger("lean_ovms")


class OvmsFiles:
    """A `deployment.desired.SettingsFiles` for config.json and graph.pbtxt."""

    def server(self, config: Config) -> Config:
        """Returns the options of the server, completed by those in its config.json. Raises StartError."""
        path = config_file.location(config.model_list)
        if path.suffix == presets.SUFFIX:
            return config
        options = config_file.read(path).options
        if left_out := [name for name in options if config.given(name) is None]:
            raise StartError(f"{config.model_list} sets {left_out[0]}, an option of a feature that was left out")
        return config.replace(**options)

    def models(self, config: Config) -> DesiredState:
        """Returns the models that the config.json lists. Raises StartError."""
        path = config_file.location(config.model_list)
        files = {path: file_stat(path)}
        models = []
        listed = presets.read(path, config) if path.suffix == presets.SUFFIX else config_file.read(path)
        for entry in listed.entries:
            files |= {place: file_stat(place) for place in (entry.base, entry.graph)}
            try:
                spec = ModelSpec(config=config_file.options_of(entry, config))
            except StartError as error:
                unusable = config.replace(config_path="", model_name=entry.name, model_path=str(entry.base))
                spec = ModelSpec(config=unusable, problem=error)
            models.append(replace(spec, stamp=_stamp(entry.graph)))
        return DesiredState(models=tuple(models), files=files)

    def model(self, config: Config, base: Path) -> ModelSpec:
        """Returns a model with the options of its directory's graph. Raises StartError."""
        path = base / GRAPH
        given = config_file.model_options(config) | {"model_name": config.served_name}
        del given["model_path"]
        try:
            text = graph.text_of(path)
            return ModelSpec(config=graph.applied(config, text, path, base).replace(**given), stamp=_digest(text))
        except StartError as error:
            return ModelSpec(config=config, problem=error)

    def write(self, config: Config, directory: Path, companions: Mapping[str, str], name: str) -> Config:
        """Writes the graph of a model into its directory, and returns the options without those that the graph now has.

        Args:
            config: The options of the model.
            directory: The directory of the model.
            companions: The paths of further models, by their options.
            name: The name of the model.
        """
        file = config.model_file
        found = config.task or model_dir.detect_task(directory / file, config.composition)
        config = config.replace(task="" if found == TEXT_GENERATION.name else found)
        if graph_writer.graph_of(config) is None:
            log.info("no %s is written for %s: OVMS has no graph for the task %s", GRAPH, directory, config.task)
            return served(config, {"model_path": str(directory), "model_name": name})
        there = {row.path: path for row in config.composition.companions if (path := config.value(row.path))}
        paths = {**companions, **{option: str(Path(path).absolute()) for option, path in there.items()}}
        text = graph_writer.text(config, f"./{file}", paths, __version__)
        path = directory / GRAPH
        try:
            if path.exists() and read_text(path) != text:
                shutil.copyfile(path, path.with_suffix(".pbtxt.bak"))
                log.info("%s was replaced by one with the given options; the old one is now %s.bak", path, path.name)
            atomic_file.write(path, text)
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(f"{path} cannot be written: {error}") from None
        place = {"model_path": str(directory), "model_name": name, "task": ""}
        return served(config, {**graph_writer.written_options(config), **place})


def _stamp(path: Path) -> str:
    try:
        return _digest(graph.text_of(path))
    except StartError:
        return ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
