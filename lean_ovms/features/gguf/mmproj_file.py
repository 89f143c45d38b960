"""Finds the mmproj file with the image encoder for a model in a GGUF file."""

from __future__ import annotations

from pathlib import Path

from ...errors import StartError
from ...repository import model_file
from .feature import NONE


def find(model: Path, option: str) -> list[Path]:
    """Returns the paths of possible mmproj files for a model, the likeliest first.

    Args:
        model: The path of the model's file.
        option: The value of --mmproj; "" to search the folder of the model.

    Raises:
        StartError: The file that the option names does not exist.
    """
    if option == NONE:
        return []
    if option:
        if not Path(option).is_file():
            raise StartError(f"--mmproj {option}: no such file")
        return [Path(option)]
    # A split model has its own folder, so the projector may be in the one above.
    split = model_file.parts(model) != [model]
    top, pattern = model.parent, f"*{model.suffix}"
    found = [*top.glob(pattern), *(top.parent.glob(pattern) if split else ())]
    if split:
        top = top.parent
    names = (str(file.relative_to(top)) for file in found)
    return [top / name for name in model_file.vision_files(names, str(model.relative_to(top)))]
