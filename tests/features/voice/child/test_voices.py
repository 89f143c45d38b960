"""Voices in files: those of the directory, those of the options, which take precedence, and invalid ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lean_ovms.config import Config
from lean_ovms.errors import StartError
from lean_ovms.features.voice.child import voices

SHAPE = [1, 4]


def write(path: Path, *values: float) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(np.array(values, "<f4").tobytes())
    return path


def config(model: Path, **given: object) -> Config:
    return Config(model_path=str(model), voices=json.dumps(given) if given else "")


def test_files_of_the_directory_by_name_and_options_above_them(tmp_path: Path) -> None:
    write(tmp_path / "voices" / "ben.bin", 2, 2, 2, 2)
    write(tmp_path / "voices" / "ada.bin", 1, 1, 1, 1)
    (tmp_path / "voices" / "notes.txt").write_text("x")
    other = write(tmp_path / "other" / "x.bin", 3, 3, 3, 3)
    found = voices.read(config(tmp_path, ben=str(other), cleo=str(other)), SHAPE)
    assert {name: voice.ravel()[0] for name, voice in found.items()} == {"ada": 1, "ben": 3, "cleo": 3}
    assert list(found) == ["ada", "ben", "cleo"]
    assert found["ada"].shape == (1, 4)
    assert voices.read(config(tmp_path / "none"), SHAPE) == {}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((1, 2, 3), "has 12 bytes; voices of this model have 16"),
        ((1, 2, 3, 4, 5), "has 20 bytes; voices of this model have 16"),
        ((1, 2, float("nan"), 4), "contains a value that is not a number"),
        ((), "has 0 bytes"),
    ],
)
def test_a_file_that_is_no_voice_stops_the_start(tmp_path: Path, values: tuple[float, ...], message: str) -> None:
    write(tmp_path / "voices" / "ada.bin", *values)
    with pytest.raises(StartError, match=message):
        voices.read(config(tmp_path), SHAPE)


def test_options_that_name_no_file(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"'ada' cannot be read from .*nothing\.bin: No such file"):
        voices.read(config(tmp_path, ada=str(tmp_path / "nothing.bin")), SHAPE)
    with pytest.raises(StartError, match="--voices must be an object that maps names to files"):
        voices.read(config(tmp_path, ada=5), SHAPE)


def test_an_english_lexicon_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MISAKI_DATA_DIR", raising=False)
    with pytest.raises(StartError, match=r"no English lexicon: its folder data needs us_gold\.json"):
        voices.require_lexicon(tmp_path)
    (tmp_path / "data").mkdir()
    for name in voices.LEXICON:
        (tmp_path / "data" / name).write_text("{}")
    voices.require_lexicon(tmp_path)
    monkeypatch.setenv("MISAKI_DATA_DIR", "/elsewhere")
    voices.require_lexicon(tmp_path / "none")
