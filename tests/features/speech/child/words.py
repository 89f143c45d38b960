"""The small Whisper of tests/data/whisper_words.zip, and recordings of synthetic speech that it knows."""

from __future__ import annotations

import json
import wave
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from lean_ovms.features.speech.child.recognizer import Samples
from tests.archives import extract

ZIP = Path(__file__).parents[3] / "data" / "whisper_words.zip"
EXACT = '{"INFERENCE_PRECISION_HINT": "f32"}'
"""The plugin_config with which all CPUs compute the same text."""


def unpacked(path: Path) -> Path:
    """Unpacks the model below a path. Returns its directory."""
    return extract(ZIP, path, "model/") / "model"


def recordings() -> dict[str, bytes]:
    """Returns audio by its text, words separated by spaces."""
    found = {}
    with zipfile.ZipFile(ZIP) as file:
        for name in file.namelist():
            if name.endswith(".wav"):
                with file.open(name) as data, wave.open(data) as sound:
                    found[Path(name).stem.replace("-", " ")] = sound.readframes(sound.getnframes())
    return found


def times() -> dict[str, list[Any]]:
    """Returns [word, start, end] of each word, by the text."""
    with zipfile.ZipFile(ZIP) as file:
        rows = json.loads(file.read("speech/times.json"))
    return {name.replace("-", " "): words for name, words in rows.items()}


def samples(data: bytes) -> Samples:
    """Returns audio as recognizers take it."""
    return np.frombuffer(data, "<i2").astype(np.float32) / 32768
