"""The voices of a text-to-speech model: files of raw float32 in exactly the shape that the network takes.

As in OVMS, they are the files voices/*.bin in the model's directory, named by their stem, and those of the options,
which take precedence.
"""

from __future__ import annotations

import json
import os
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ....config import EngineConfig
from ....errors import StartError
from ....util.files import read_bytes
from ..feature import VoiceOptions

Voice = NDArray[np.float32]
FOLDER = "voices"
MAX_VOICES = 1024
LEXICON = ("us_gold.json", "us_silver.json", "gb_gold.json", "gb_silver.json")


def read(config: EngineConfig, shape: list[int]) -> dict[str, Voice]:
    """Returns the voices by name, first those of the directory in alphabetical order. Raises StartError."""
    files = {path.stem: path for path in sorted((config.model_dir / FOLDER).glob("*.bin"))}
    named = config.of(VoiceOptions).voices
    listed = json.loads(named) if named else {}
    for name, file in listed.items():
        if not isinstance(file, str) or not name:
            raise StartError("--voices must be an object that maps names to files")
        files[name] = Path(file)
    if len(files) > MAX_VOICES:
        raise StartError(f"{config.model_dir} has more than {MAX_VOICES} voices")
    return {name: _read(name, path, shape) for name, path in files.items()}


def _read(name: str, path: Path, shape: list[int]) -> Voice:
    wanted = prod(shape) * 4
    try:
        data = read_bytes(path)
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or error
        raise StartError(f"the voice {name!r} cannot be read from {path}: {problem}") from None
    if len(data) != wanted:
        raise StartError(f"the voice {name!r} in {path} has {len(data)} bytes; voices of this model have {wanted}")
    voice = np.frombuffer(data, "<f4").reshape(shape)
    if not np.isfinite(voice).all():
        raise StartError(f"the voice {name!r} in {path} contains a value that is not a number")
    return voice


def require_lexicon(model_dir: Path) -> None:
    """Raises StartError if a Kokoro model lacks the lexicon for English, whose name openvino-genai's error omits."""
    if "MISAKI_DATA_DIR" in os.environ or all((model_dir / "data" / name).is_file() for name in LEXICON):
        return
    raise StartError(
        f"the model has no English lexicon: its folder data needs {', '.join(LEXICON)} "
        "of the package misaki, or MISAKI_DATA_DIR names the folder with them"
    )
