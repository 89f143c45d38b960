"""Whisper base on long speech: with times it says what it says without them. Its segments end before its windows do."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import wave
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr

from lean_ovms.config import Config
from lean_ovms.features.speech.child import model as loading
from lean_ovms.features.speech.child.task import SpeechTask
from lean_ovms.features.speech.params import TranscribeParams
from lean_ovms.features.speech.records import Audio, Transcribe, WindowTranscribed
from lean_ovms.types.audio import SAMPLE_RATE
from tests.engine.rig import WorkerRig
from tests.features.speech.child.words import EXACT

TEXT = (Path(__file__).parents[1] / "data" / "real" / "speech.txt").read_text("utf-8")
LENGTHS = {66: (172, 135), 105: (290, 140), 240: (389, 87)}
"""Words of the text, and how many of them a minute, by about how many seconds of speech they are."""


@pytest.fixture(scope="module")
def task(whisper_ir: Path) -> SpeechTask:
    if shutil.which("espeak-ng") is None:
        pytest.skip("no espeak-ng: apt-get install espeak-ng")
    config = Config(model_path=str(whisper_ir), task="speech2text", plugin_config=EXACT)
    recognizer, detector, has_speech = loading.load(config)
    return SpeechTask(recognizer, 8, detector, has_speech)


def words(text: str) -> list[str]:
    return re.sub(r"[^a-z0-9']", " ", text.lower()).split()


def speech(text: str, rate: int, noise: float) -> bytes:
    """The text as it is spoken. noise: its level by that of the speech."""
    command = ["espeak-ng", "-v", "en-us", "-s", str(rate), "--stdout", text]
    spoken = subprocess.run(command, check=True, capture_output=True).stdout
    with wave.open(io.BytesIO(spoken)) as sound:
        data = np.frombuffer(sound.readframes(1 << 30), "<i2").astype(np.float32)
        samples = soxr.resample(data, sound.getframerate(), SAMPLE_RATE)
    level = noise * float(np.sqrt(np.mean(samples**2)))
    samples = samples + np.random.default_rng(1).standard_normal(len(samples)) * level
    return np.clip(samples, -32768, 32767).astype("<i2").tobytes()


def transcribed(task: SpeechTask, audio: bytes, **params: Any) -> list[dict[str, Any]]:
    """The windows of a transcription."""
    rig = WorkerRig(task)
    task.out.clear()
    rig.put(Transcribe(1, asdict(TranscribeParams(language="en", **params)), "", 0, {}, 0))
    rig.put(Audio(1, False, audio))
    rig.put(Audio(1, True, b""))
    rig.run()
    return [record.window for record in rig.sent() if isinstance(record, WindowTranscribed)]


def errors(found: list[str], expected: list[str]) -> float:
    """Word errors: the edits between two texts by the words of the expected one."""
    row = list(range(len(expected) + 1))
    for number, word in enumerate(found, 1):
        before, row[0] = row[0], number
        for at, other in enumerate(expected, 1):
            before, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, before + (word != other))
    return row[-1] / len(expected)


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("seconds", LENGTHS)
def test_the_words_with_times_are_those_without(task: SpeechTask, seconds: int, noise: float) -> None:
    count, rate = LENGTHS[seconds]
    text = " ".join(TEXT.split()[:count])
    audio = speech(text, rate, noise)
    plain = transcribed(task, audio)
    said = words("".join(window["text"] for window in plain))
    for more in ({"words": True}, {"fallback": False}):
        windows = transcribed(task, audio, segments=True, **more)
        timed = words("".join(window["text"] for window in windows))
        assert abs(len(timed) - len(said)) <= len(windows)
        assert errors(timed, words(text)) <= errors(said, words(text)) + 0.05
        segments = [segment for window in windows for segment in window["segments"]]
        assert words("".join(segment["text"] for segment in segments)) == timed
        starts = [segment["start"] for segment in segments]
        assert starts == sorted(starts)
        if "words" in more:
            alone = [word["word"] for window in windows for word in window["words"]]
            assert "".join(words(" ".join(alone))) == "".join(timed)
