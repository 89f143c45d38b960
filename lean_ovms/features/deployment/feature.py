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
        "when models are loaded. start: when the server starts; request: at the first request for each; auto: at "
        "requests if the server has several models from a repository or in groups, else at the start",
        choices=("auto", "start", "request"),
    )
    max_loaded_models: int = _deployment(
        0,
        "most models, or groups of models, in memory at once; 0: one if there are groups, else as many as fit in the "
        "free memory",
        low=0,
    )
    group_name: str = _model(
        "", "models of the same group are loaded and unloaded together; those of the group permanent are never unloaded"
    )
    model_idle_timeout_s: float = _model(
        0.0,
        "unload the model after this many seconds without a request; the next request loads it again; 0: never",
        low=0,
    )


FEATURE = Feature(
    name="deployment",
    summary="serves one model or several: loads and unloads them as they are needed, and replaces those that change",
    essential=True,
    options=DeploymentOptions,
    flags="flags.txt",
    parts=(
        PartRow(seam=DEPLOYMENT, make="manager:DeploymentManager"),
        PartRow(seam=SOURCES, make="desired:ServedModels"),
    ),
)
