"""The manifest of models of a hub."""

from __future__ import annotations

from ...manifest import MODEL_SOURCE, RUNTIME_PULLS, Command, Feature, PartRow
from .options import HubOptions

FEATURE = Feature(
    name="hub",
    summary="pulls models of a Hugging Face hub by their names, and converts those that are not in OpenVINO's format",
    packages=("huggingface_hub",),
    options=HubOptions,
    flags="flags.txt",
    commands=(Command("pull", "ORG/NAME", "download a model from Hugging Face", "source:run_pull", option="pull"),),
    parts=(
        PartRow(
            seam=MODEL_SOURCE,
            make="source:HubSource",
            options=("source_model", "pull", "weight_format", "extra_quantization_params", "vocoder"),
        ),
        PartRow(seam=RUNTIME_PULLS, make="runtime:HubPulls", options=("allow_runtime_pull",)),
    ),
)
