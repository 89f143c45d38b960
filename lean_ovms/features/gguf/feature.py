"""The manifest of GGUF files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...config.options import Options, option
from ...errors import WrongOptions
from ...manifest import Feature, FormatRow

NONE = "none"
"""The value of --mmproj for a model that reads text only."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class GgufOptions(Options):
    """The files of a model to load, if it has several."""

    in_engine = True

    gguf_filename: str = option(
        "",
        "GGUF file of source_model: its name (for a split file, that of the first part) or its quantization, such as "
        "Q4_K_M",
        group="repository",
    )
    mmproj: str = option(
        "",
        "file of the multimodal projector with which a model in a GGUF file reads images (PAGED); if empty, one "
        "beside the model with mmproj in its name, if any; none for text only",
        group="model",
    )

    def check(self, config: Any) -> None:
        """Checks that --mmproj does not name a file for a model that is no GGUF file. Raises WrongOptions."""
        known = config.model_path and not self.gguf_filename  # other models are found or pulled later
        if known and self.mmproj not in ("", NONE) and any(config.model_dir.glob("openvino_*model.xml")):
            raise WrongOptions(f"--mmproj: {config.model_dir} is an OpenVINO model, which does not use mmproj files")


FEATURE = Feature(
    name="gguf",
    summary="serves GGUF files, llama.cpp's model format, without conversion",
    options=GgufOptions,
    flags="flags.txt",
    formats=(
        FormatRow(
            name="GGUF",
            suffix=".gguf",
            option="gguf_filename",
            usual="Q4_K_M",
            vision_option="mmproj",
            file="model_file:GgufFile",
            network="child.engine_file:GgufEngineFile",
        ),
    ),
)
