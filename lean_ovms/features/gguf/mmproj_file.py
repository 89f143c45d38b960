"""Finds the mmproj file with the image encoder for a model in a GGUF file."""

from __future__ import annotations

from pathlib import Path

from ...errors import StartError

WORD = "mmproj"
"""What the names of such files have."""
NONE = "none"
"""The value of the option for a model that reads text only."""


def find(model: Path, option: str) -> list[Path]:
    """Returns the paths of possible mmproj files for a model, the likeliest first.

    Args:
        model: The path of the model's file.
        option: The value of --mmproj; "": the files in the model's folder are looked at.

    Raises:
        StartError: The file that the option names does not exist.
    """
    if option == NONE:
        return []
    if option:
        if not Path(option).is_file():
            raise StartError(f"--mmproj {option}: there is no such file")
        return [Path(option)]
    found = model.parent.glob(f"*{WORD}*{model.suffix}")
    return sorted(found, key=lambda file: ("f16" not in file.name.lower().replace("bf16", ""), file.name))
