"""Whisper tiny.en, which knows English only: no tokens of a language or a task stand before its texts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lean_ovms.config import Config
from lean_ovms.features.speech.child import model as loading
from lean_ovms.features.speech.child.task import SpeechTask
from lean_ovms.types.audio import SAMPLE_RATE
from tests.real.conftest import HINT, skip_without
from tests.real.test_whisper import ONCE, SENTENCES, SENTENCES_RATE, TEXT, WORDS, errors, speech, transcribed, words


@pytest.fixture(scope="module", params=["f32", "bf16"])
def task(whisper_en_ir: Path, request: pytest.FixtureRequest) -> SpeechTask:
    if shutil.which("espeak-ng") is None:
        pytest.skip("no espeak-ng: apt-get install espeak-ng")
    skip_without(request.param)
    hint = json.dumps({HINT: request.param})
    recognizer, detector, check = loading.load(
        Config(model_path=str(whisper_en_ir), task="speech2text", plugin_config=hint)
    )
    return SpeechTask(recognizer, 8, 8, detector, check)


def test_it_says_that_it_knows_english_only(task: SpeechTask) -> None:
    info = task.recognizer.info.of_task
    assert (info["languages"], info["translates"]) == (["en"], False)


def test_it_hears_as_well_as_in_torch(task: SpeechTask) -> None:
    """transformers in torch hears 5 of 26 words otherwise: "harbor", "boat", and "stole that" for "stood at the"."""
    said = " ".join(TEXT.split()[:SENTENCES])
    audio = speech(said, SENTENCES_RATE, 0.0)
    for params in (ONCE, {**ONCE, "segments": True}, {**WORDS, "language": ""}):
        windows = transcribed(task, audio, **params)
        heard = words("".join(window["text"] for window in windows))
        assert {window["language"] for window in windows} == {"en"}
        assert errors(heard, words(said)) <= 6 / SENTENCES
        if "words" in params:
            timed = [word for window in windows for word in window["words"]]
            starts = [word["start"] for word in timed]
            assert words(" ".join(word["word"] for word in timed)) == heard
            assert starts == sorted(starts)
            assert 0 <= starts[0] < 1 < starts[-1] < len(audio) / 2 / SAMPLE_RATE
