"""A GGUF file as the engine uses it: its tokenizer and its networks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....config import EngineConfig
from ....engine.paged.network import NetworkEdit, NotPageable, VisionFile, WeightsSource
from ....errors import StartError
from ....repository import model_file
from ..feature import NONE, GgufOptions
from . import network, pooling_network
from .tokenizer import GgufTokenizer

log = logging.getLogger("lean_ovms.gguf")


class GgufEngineFile:
    """A model in a GGUF file, or in a split file, which is named by its first part."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tokenizer(self) -> GgufTokenizer:
        return GgufTokenizer(self._path)

    def vision_file(self, config: EngineConfig) -> VisionFile | None:
        """Returns the mmproj file that reads images for the model, or None if the model has none."""
        option = config.of(GgufOptions).mmproj
        paths = mmproj_files(self._path, option)
        if not paths:
            return None
        from .mmproj import Mmproj  # late, because text models do not need it

        return Mmproj.first(paths, self._path, named=bool(option))

    def without_images(self, config: EngineConfig, reason: str) -> None:
        """Logs that the model's mmproj file is not used, and why. Raises StartError if --mmproj names the file."""
        option = config.of(GgufOptions).mmproj
        for path in mmproj_files(self._path, option)[:1]:
            if option:
                raise StartError(f"--mmproj {option}: {reason}")
            log.warning("%s reads text only, and does not use %s: %s", self._path.name, path.name, reason)

    def weights(
        self, edits: Sequence[NetworkEdit], *, trees: bool, adapted: bool, exact: bool, images: bool
    ) -> WeightsSource:
        """Returns the source of the network for a model that generates text.

        Raises NotPageable if it is to be edited.
        """
        if edits:
            raise NotPageable("hidden states are not supported for networks in GGUF files")
        return network.GgufWeights(self._path, adapted=adapted, exact=exact, images=images)

    def pooling_network(self, output: str, *, exact: bool) -> Any:
        """Builds the network of a pooling model with this output; if it is `exact`, weights are not requantized."""
        return pooling_network.read(self._path, output, exact=exact)


def mmproj_files(model: Path, option: str) -> list[Path]:
    """Returns the paths of possible mmproj files for a model, the likeliest first. Raises StartError.

    The option is that of --mmproj, which names the file; "" searches the folder of the model.
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
