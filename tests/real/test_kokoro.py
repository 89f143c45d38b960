"""Kokoro 82M speaks its text with several voices and speeds: Whisper recognizes the words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soxr

from lean_ovms.config import Config
from lean_ovms.features.speech.child import model as hearing
from lean_ovms.features.speech.child.task import SpeechTask
from lean_ovms.features.voice.child.pipeline import KOKORO_RATE, GenAiSynthesizer
from lean_ovms.repository.model_dir import detect_task
from lean_ovms.types.audio import SAMPLE_RATE, SpeakParams
from tests.features.speech.child.words import EXACT
from tests.real.test_whisper import transcribed, words

TEXT = "Good morning, the quick brown fox jumps over the lazy dog."
HEARD = {"good", "morning", "quick", "brown", "fox", "jumps", "lazy", "dog"}
"""The words that matter. A "the" of these voices, which are Japanese, may be recognized as "and a"."""
SPOKEN = [SpeakParams(), SpeakParams(speed=0.8), SpeakParams(voice="jf_gongitsune"), SpeakParams(voice="jm_kumo")]


@pytest.mark.slow
def test_whisper_hears_what_kokoro_says(kokoro_ir: Path, whisper_ir: Path) -> None:
    assert detect_task(kokoro_ir) == "text2speech"
    synthesizer = GenAiSynthesizer(Config(model_path=str(kokoro_ir), task="text2speech"))
    recognizer, detector, check = hearing.load(
        Config(model_path=str(whisper_ir), task="speech2text", plugin_config=EXACT)
    )
    listener = SpeechTask(recognizer, 8, 8, detector, check)
    spoken = [found for params in SPOKEN for found in synthesizer.speak([(TEXT, params)])]
    lengths = []
    for speech in spoken:
        assert isinstance(speech, np.ndarray)
        heard = (soxr.resample(speech, KOKORO_RATE, SAMPLE_RATE) * 32767).astype("<i2").tobytes()
        said = words("".join(window["text"] for window in transcribed(listener, heard)))
        assert set(said) >= HEARD
        lengths.append(len(speech))
    assert lengths[1] == pytest.approx(lengths[0] / 0.8, rel=0.1)
    assert not any(np.array_equal(spoken[0][: len(other)], other[: lengths[0]]) for other in spoken[2:])
