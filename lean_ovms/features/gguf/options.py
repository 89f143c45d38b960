"""The option of GGUF files."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import Options, option


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class GgufOptions(Options):
    """Which file of a model of a hub is meant."""

    gguf_filename: str = option(
        "",
        "GGUF file of source_model: its name, of a split file that of the first part, or its quantization, "
        "such as Q4_K_M",
        group="repository",
    )
