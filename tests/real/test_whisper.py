"""Whisper base: long speech with and without times, speech in ten formats, and no text where nobody speaks.

Its segments end before its windows do.
"""

from __future__ import annotations

import io
import random
import re
import shutil
import subprocess
import wave
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr

from lean_ovms.config import Config
from lean_ovms.features.speech.child import model as loading
from lean_ovms.features.speech.child.decode_loop import DecodeLoop
from lean_ovms.features.speech.child.task import SpeechTask
from lean_ovms.features.speech.params import TranscribeParams
from lean_ovms.features.speech.records import Audio, Transcribe, WindowTranscribed
from lean_ovms.types.audio import SAMPLE_RATE
from tests.engine.rig import WorkerRig
from tests.features.media_files.audio.test_decode import samples
from tests.features.speech.child.words import EXACT
from tests.recordings import film, sound

TEXT = (Path(__file__).parents[1] / "data" / "real" / "speech.txt").read_text("utf-8")
LENGTHS = {66: (172, 135), 240: (389, 87)}
"""The number of words in the text and words per minute, by the approximate seconds of speech."""


WORDS, ONCE = {"words": True}, {"fallback": False}
"""Fields of a transcription: times of words, and no second try after a bad result."""
FORMATS: dict[str, tuple[int, Callable[[Any, Any], bytes]]] = {
    "PCM_U8": (3, lambda at16, at48: sound(at16, "WAV", subtype="PCM_U8")),
    "FLOAT": (4, lambda at16, at48: sound(at16, "WAV", subtype="FLOAT")),
    "ALAW": (5, lambda at16, at48: sound(at16, "WAV", subtype="ALAW")),
    "PCM_24": (4, lambda at16, at48: sound(at48, "WAV", 48_000, "PCM_24")),
    "FLAC": (4, lambda at16, at48: sound(at48, "FLAC", 48_000)),
    "Vorbis": (4, lambda at16, at48: sound(at48, "OGG", 48_000, "VORBIS")),
    "Opus": (5, lambda at16, at48: sound(at48, "OGG", 48_000, "OPUS")),
    "MP3": (4, lambda at16, at48: sound(at48, "MP3", 48_000)),
    "AAC in MP4": (3, lambda at16, at48: film(at48[:, None], "mp4", "aac", 48_000)),
    "Opus in WebM": (5, lambda at16, at48: film(at48[:, None], "webm", "libopus", 48_000)),
}
"""Formats of files. For each: how many words transformers in torch misses (f32, greedy, without times), and a function
that writes a file from samples at 16 and at 48 kHz."""
SENTENCES, SENTENCES_RATE = 26, 140
"""The number of words spoken in each format, and words per minute."""
SECONDS = 4
QUIET = {
    "silence": lambda times, dice: np.zeros_like(times),
    "noise": lambda times, dice: 2000 * dice.standard_normal(len(times)),
    "hum": lambda times, dice: 4000 * np.sin(2 * np.pi * 50 * times) + 1500 * np.sin(2 * np.pi * 150 * times),
}
"""Samples by their times in which nobody speaks."""


@pytest.fixture(scope="module")
def task(whisper_ir: Path) -> SpeechTask:
    if shutil.which("espeak-ng") is None:
        pytest.skip("no espeak-ng: apt-get install espeak-ng")
    config = Config(model_path=str(whisper_ir), task="speech2text", plugin_config=EXACT)
    recognizer, detector, check = loading.load(config)
    return SpeechTask(recognizer, 8, 8, detector, check)


def words(text: str) -> list[str]:
    return re.sub(r"[^a-z0-9']", " ", text.lower()).split()


def speech(text: str, rate: int, noise: float) -> bytes:
    """Returns the spoken text. `noise` is the level of noise relative to the speech."""
    command = ["espeak-ng", "-v", "en-us", "-s", str(rate), "--stdout", text]
    with wave.open(io.BytesIO(subprocess.run(command, check=True, capture_output=True).stdout)) as recorded:
        data = np.frombuffer(recorded.readframes(1 << 30), "<i2").astype(np.float32)
        samples = soxr.resample(data, recorded.getframerate(), SAMPLE_RATE)
    level = noise * float(np.sqrt(np.mean(samples**2)))
    samples = samples + np.random.default_rng(1).standard_normal(len(samples)) * level
    return np.clip(samples, -32768, 32767).astype("<i2").tobytes()


def transcribed(task: SpeechTask, audio: bytes, **params: Any) -> list[dict[str, Any]]:
    """Returns the windows of a transcription."""
    rig = WorkerRig(task)
    task.out.clear()
    rig.put(Transcribe(1, asdict(TranscribeParams(**{"language": "en"} | params)), "", 0, {}, 0))
    rig.put(Audio(1, False, audio))
    rig.put(Audio(1, True, b""))
    rig.run()
    return [record.window for record in rig.sent() if isinstance(record, WindowTranscribed)]


def errors(found: list[str], expected: list[str]) -> float:
    """Returns the word error rate: the edits between two texts divided by the expected number of words."""
    row = list(range(len(expected) + 1))
    for number, word in enumerate(found, 1):
        before, row[0] = row[0], number
        for at, other in enumerate(expected, 1):
            before, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, before + (word != other))
    return row[-1] / len(expected)


@pytest.mark.parametrize(
    ("seconds", "noise", "ways"), [(66, 0.0, (ONCE,)), (66, 0.3, (WORDS, ONCE)), (240, 0.0, (WORDS,))]
)
def test_the_words_with_times_are_those_without(
    task: SpeechTask, seconds: int, noise: float, ways: tuple[dict[str, bool], ...]
) -> None:
    count, rate = LENGTHS[seconds]
    text = " ".join(TEXT.split()[:count])
    audio = speech(text, rate, noise)
    plain = transcribed(task, audio)
    said = words("".join(window["text"] for window in plain))
    for more in ways:
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


def test_states_that_take_turns_do_not_change_each_other(task: SpeechTask) -> None:
    """With two infer requests of one compiled decoder, openvino raised errors, or ended the process."""
    assert isinstance(task.recognizer, DecodeLoop)
    network, dice = task.recognizer._network, random.Random(4)
    hidden = np.random.default_rng(0).standard_normal((1, 1500, 512)).astype(np.float32)

    def steps(texts: int, lengths: list[int]) -> Iterator[Any]:
        decoding = network.begin(np.repeat(hidden, texts, axis=0))
        for length in lengths:
            yield np.array(decoding.step(np.full((texts, length), 50258 + texts)))
        decoding.close()

    kinds = [(dice.choice([1, 1, 2, 3, 5]), [dice.randint(1, 3), *[1] * dice.randint(1, 8)]) for _ in range(9)]
    taking_turns: dict[int, Iterator[Any]] = {}
    found: list[list[Any]] = [[] for _ in kinds]
    left = list(range(len(kinds)))
    while left or taking_turns:
        while left and len(taking_turns) < 2:
            number = left.pop(0)
            taking_turns[number] = steps(*kinds[number])
        number = dice.choice(list(taking_turns))
        try:
            found[number].append(next(taking_turns[number]))
        except StopIteration:
            del taking_turns[number]
    for kind, turns in zip(kinds, found, strict=True):
        assert all(np.allclose(one, alone, atol=1e-3) for one, alone in zip(turns, steps(*kind), strict=True))


@pytest.mark.parametrize("field", ["prompt", "hotwords"])
def test_the_language_is_that_of_the_speech_and_not_of_a_prompt(task: SpeechTask, field: str) -> None:
    audio = speech(" ".join(TEXT.split()[:SENTENCES]), SENTENCES_RATE, 0.0)
    prompt = {field: "Das ist ein Gespräch über die Straßen von Köln."}
    window, *_ = transcribed(task, audio, language="", fallback=False, **prompt)
    assert window["language"] == "en"


def test_speech_in_ten_formats_is_heard_as_well_as_by_torch(task: SpeechTask) -> None:
    text = " ".join(TEXT.split()[:SENTENCES])
    at16 = np.frombuffer(speech(text, SENTENCES_RATE, 0.0), "<i2").astype(np.float32) / 32768
    at48 = soxr.resample(at16, SAMPLE_RATE, 48_000)
    misheard = 0.0
    for _, write in FORMATS.values():
        heard = (samples(write(at16, at48)) * 32768).astype("<i2").tobytes()
        said = words("".join(window["text"] for window in transcribed(task, heard)))
        misheard += errors(said, words(text)) / len(FORMATS)
    torchs = sum(count for count, _ in FORMATS.values()) / SENTENCES / len(FORMATS)
    assert misheard <= torchs + 0.01


@pytest.mark.parametrize("kind", QUIET)
def test_where_nobody_speaks_there_is_no_text(task: SpeechTask, kind: str) -> None:
    times = np.arange(SECONDS * SAMPLE_RATE) / SAMPLE_RATE
    audio = QUIET[kind](times, np.random.default_rng(1)).astype("<i2").tobytes()
    for params in ({}, {"segments": True}):
        assert not "".join(window["text"] for window in transcribed(task, audio, **params)).strip(), params
