"""The manifest of models of a hub."""

from __future__ import annotations

from ...manifest import MODEL_SOURCE, RUNTIME_PULLS, CommandRow, Feature, PartRow
from .options import HubOptions

FEATURE = Feature(
    name="hub",
    summary="pulls models of a Hugging Face hub by their names, and converts those that are not in OpenVINO's format",
    packages=("huggingface_hub",),
    options=HubOptions,
    commands=(
        CommandRow(
            option="pull", run="source:run_pull", word="pull", usage="ORG/NAME", help="download a model of a hub"
        ),
    ),
    parts=(
        PartRow(
            seam=MODEL_SOURCE,
            make="source:HubSource",
            options=(
                *("source_model", "draft_source_model", "pull"),
                *("weight_format", "extra_quantization_params", "vocoder"),
            ),
        ),
        PartRow(seam=RUNTIME_PULLS, make="runtime:HubPulls", options=("allow_runtime_pull",)),
    ),
)
