"""The manifest of OpenVINO Model Server's files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...config.options import Options, option
from ...manifest import Command, Feature, SettingsRow

GRAPH = "graph.pbtxt"
"""The name of OVMS's graph in a model's directory."""
CONFIG = "config.json"
"""The name of OVMS's list of models in a model repository."""

_repository = partial(option, group="repository")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class OvmsFileOptions(Options):
    """The options for the file that lists the models, and for the commands that write such files."""

    config_path: str = option(
        "", "config.json, or presets of llama.cpp (.ini), that lists the models to serve", group="deployment"
    )
    configure: bool = _repository(False, "command: write the graph.pbtxt of model_path from the options and exit")
    add_to_config: str = _repository(
        "", "command: add model_name to config_path, or to the file given here, and exit", bare="true"
    )
    remove_from_config: str = _repository(
        "", "command: remove model_name from config_path, or from the file given here, and exit", bare="true"
    )


FEATURE = Feature(
    name="ovms_files",
    summary="reads and writes OpenVINO Model Server's graph.pbtxt (of one model) and config.json (of several)",
    needs=("deployment",),
    packages=("google",),
    options=OvmsFileOptions,
    flags="flags.txt",
    settings=SettingsRow(option="config_path", listed_in=CONFIG, file=GRAPH, files="files:OvmsFiles"),
    commands=(
        Command("", "", "write the graph of a model", "commands:configure", option="configure", takes_file=True),
        Command("", "", "add a model to a list", "commands:add", option="add_to_config"),
        Command("", "", "remove a model from a list", "commands:remove", option="remove_from_config"),
    ),
)
