"""The manifest of serving one model, those of a directory, or those that a file lists."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...config.options import Options, option
from ...manifest import DEPLOYMENT, SOURCES, Feature, PartRow

_deployment = partial(option, group="deployment")
_model = partial(option, group="model")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DeploymentOptions(Options):
    """The options for when models are loaded and unloaded."""

    load_models: str = _deployment(
        "auto",
        "when models are loaded: at the start of the server (start), or each at its first request (request). auto "
        "means request if the server has several models from a repository or in groups, and start otherwise",
        choices=("auto", "start", "request"),
    )
    max_loaded_models: int = _deployment(
        0,
        "maximum number of models, or groups of models, in memory at once; 0 means one if there are groups, and "
        "otherwise as many as fit in the free memory",
        low=0,
    )
    group_name: str = _model(
        "",
        "group of the model; the models of a group are loaded and unloaded together, and those of the group "
        "permanent are never unloaded",
    )
    model_idle_timeout_s: float = _model(
        0.0, "unload the model after this many seconds without a request, until the next request; 0 for never", low=0
    )


FEATURE = Feature(
    name="deployment",
    summary="serves one or more models: loads and unloads them as needed, and replaces those that change",
    essential=True,
    options=DeploymentOptions,
    flags="flags.txt",
    parts=(
        PartRow(seam=DEPLOYMENT, make="manager:DeploymentManager"),
        PartRow(seam=SOURCES, make="desired:ServedModels"),
    ),
)
