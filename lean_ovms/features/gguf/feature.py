"""The manifest of GGUF files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...config.options import Options, option
from ...manifest import Feature, FormatRow, ModelRow

if TYPE_CHECKING:
    from .overrides import Overrides

NONE = "none"
"""The value of --mmproj for a model that reads text only."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class GgufOptions(Options):
    """The files of a model to load, if it has several."""

    in_engine = True

    gguf_filename: str = option(
        "",
        "GGUF file of source_model: its name (of a split file the first part's) or its quantization, such as Q4_K_M",
        group="repository",
    )
    mmproj: str = option(
        "",
        "multimodal projector with which a GGUF model reads images (PAGED); if empty, one beside the model; none for "
        "text only",
        group="model",
    )

    override_kv: str = option(
        "",
        "GGUF metadata to replace: KEY=TYPE:VALUE,... (int, float, bool, str)",
        group="model",
    )
    rope_parameters: str = option(
        "",
        'JSON object that scales positions of a GGUF model: {"rope_type": "yarn", "factor": 4}',
        group="model",
        json_object=True,
    )

    def read_overrides(self) -> Overrides:
        """Returns the values that override_kv and rope_parameters replace in the model's file. Raises WrongOptions."""
        from .overrides import Overrides

        return Overrides.read(self.override_kv, self.rope_parameters)

    def check(self, config: Any) -> None:
        """Checks the form of the values that replace those of the file. Raises WrongOptions."""
        if self.override_kv or self.rope_parameters:
            self.read_overrides()


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
            options=("override_kv", "rope_parameters"),
            file="model_file:GgufFile",
            adapter="adapter_file:GgufAdapter",
            network="child.engine_file:GgufEngineFile",
        ),
    ),
    model=ModelRow(install="preparation:GgufOnly", options=("mmproj", "override_kv", "rope_parameters")),
)
