"""The manifest of models of a hub."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...config.options import Options, option
from ...manifest import MODEL_SOURCE, RUNTIME_PULLS, Command, Feature, PartRow

_repository = partial(option, group="repository")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class HubOptions(Options):
    """The options for pulling and converting models."""

    pull: bool = _repository(False, "command: pull source_model and exit")
    revision: str = _repository("", "branch, tag or commit of source_model, which is pulled into ORG/NAME@REVISION")
    overwrite_models: bool = _repository(False, "pull a model again even if it is there")
    weight_format: str = _repository(
        "", "weight format for models that optimum-cli converts, such as int4; int8 if empty"
    )
    extra_quantization_params: str = _repository("", "further arguments for optimum-cli")
    vocoder: str = _repository(
        "",
        "vocoder for a SpeechT5 model that optimum-cli converts, such as microsoft/speecht5_hifigan",
        tasks=("text2speech",),
    )
    allow_runtime_pull: bool = _repository(
        False,
        "let clients pull models from the hub into model_repository_path, and delete them there (/api/pull, "
        "/api/delete)",
    )


FEATURE = Feature(
    name="hub",
    summary="pulls models from a Hugging Face hub by name, and converts those that are not in OpenVINO's format",
    needs=("deployment",),
    packages=("huggingface_hub",),
    options=HubOptions,
    flags="flags.txt",
    commands=(
        Command(
            "pull", "ORG/NAME", "download a model from Hugging Face", "source:run_pull", option="pull", fetches=True
        ),
    ),
    parts=(
        PartRow(
            seam=MODEL_SOURCE,
            make="source:HubSource",
            options=("source_model", "pull", "revision", "weight_format", "extra_quantization_params", "vocoder"),
        ),
        PartRow(seam=RUNTIME_PULLS, make="runtime:HubPulls", options=("allow_runtime_pull",)),
    ),
)
