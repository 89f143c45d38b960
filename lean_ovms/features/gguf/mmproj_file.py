"""Finds the file that reads images for a model in a GGUF file."""

from __future__ import annotations

from pathlib import Path

from ...errors import StartError

WORD = "mmproj"
"""What the names of such files have."""
NONE = "none"
"""The value of the option for a model that reads text only."""


def find(model: Path, option: str) -> list[Path]:
    """Returns the files that may read images for a model, the likeliest first.

    Args:
        model: The file of the model.
        option: The value of --mmproj; empty: the files beside the model.

    Raises:
        StartError: The file that the option names is not there.
    """
    if option == NONE:
        return []
    if option:
        if not Path(option).is_file():
            raise StartError(f"--mmproj {option}: there is no such file")
        return [Path(option)]
    found = model.parent.glob(f"*{WORD}*{model.suffix}")
    return sorted(found, key=lambda file: ("f16" not in file.name.lower().replace("bf16", ""), file.name))
