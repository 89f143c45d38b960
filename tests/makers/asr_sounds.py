"""The sounds that the model of tests/data/asr_model.zip has memorized, and its directories."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ARCHIVE = Path(__file__).parents[2] / "tests" / "data" / "asr_model.zip"
SOUNDS = {
    "one low tone": "English",
    "high": "English",
    "two tones": "English",
    "ein tiefer Ton": "German",
    "hoch": "German",
    "zwei Töne": "German",
}
"""The language of each sound, by what is heard in it."""
HERTZ = {"one low tone": (300,), "high": (2500,), "two tones": (300, 2500)}
SECONDS = 0.9
"""The duration of a tone."""


def samples_of(name: str) -> NDArray[np.float32]:
    """Returns tones; in German they are interrupted."""
    german = list(SOUNDS).index(name) >= len(HERTZ)
    hertz = list(HERTZ.values())[list(SOUNDS).index(name) % len(HERTZ)]
    time = np.arange(int(SECONDS * 16000)) / 16000
    tones = np.concatenate([np.sin(2 * np.pi * one * time) for one in hertz])
    bursts = np.sin(2 * np.pi * 10 * np.arange(len(tones)) / 16000) > 0
    return (tones * (bursts if german else 1.0) * 0.5).astype(np.float32)


def unpacked(folder: Path, kind: str = "qwen3_asr") -> Path:
    """Unpacks the model into a folder, and returns its directory."""
    with zipfile.ZipFile(ARCHIVE) as file:
        file.extractall(folder)
    if kind == "fun_asr":
        fun = json.loads((folder / kind / "config.json").read_text())
        for path in (folder / "qwen3_asr").iterdir():
            if not (folder / kind / path.name).exists():
                shutil.copy(path, folder / kind)
        whole = json.loads((folder / "qwen3_asr" / "config.json").read_text())
        (folder / kind / "config.json").write_text(json.dumps({**whole, **fun, "architectures": None}))
    return folder / kind
