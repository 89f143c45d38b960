"""The tokenizer of the small Whisper is the one that it was trained with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.features.speech.child.words import unpacked

pytest.importorskip("tokenizers", reason="needs tokenizers, which read tokenizer.json")


@pytest.mark.slow
def test_the_exported_tokenizer_is_that_of_the_training(tmp_path: Path) -> None:
    from tests.makers.whisper_words.check import check

    model = unpacked(tmp_path)
    assert check(model) > 290
    path = model / "tokenizer.json"
    changed = json.loads(path.read_text())
    vocabulary = changed["model"]["vocab"]
    vocabulary["ee"], vocabulary["ef"] = vocabulary["ef"], vocabulary["ee"]
    path.write_text(json.dumps(changed))
    with pytest.raises(ValueError, match=r"tokenizer\.json has"):
        check(model)
