"""Recordings of words through the complete server to the small Whisper that knows them (whisper_words.zip)."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio
import soundfile
import soxr

from tests.archives import extract
from tests.e2e.conftest import local_server
from tests.recordings import film, pcm, sound, wav

ZIP = Path(__file__).parents[1] / "data" / "whisper_words.zip"
NAME = "three-five-seven-eight-four-zero"
TEXT = NAME.replace("-", " ")

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract(ZIP, tmp_path_factory.mktemp("whisper"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(folder: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    options = {"model_path": str(folder / "model"), "model_name": "whisper", "task": "speech2text"}
    async with local_server(**options, enable_word_timestamps=True) as local, local.client() as client:
        yield client
        await local.app.close()


def spoken(folder: Path, rate: int = 16_000, name: str = NAME) -> np.ndarray:
    """Returns the recording at this rate, (frames, 1)."""
    samples, own = soundfile.read(folder / "speech" / f"{name}.wav", dtype="float32")
    return soxr.resample(samples, own, rate)[:, None]


async def transcribed(client: openai.AsyncOpenAI, data: bytes, **more: Any) -> Any:
    return await client.audio.transcriptions.create(model="whisper", file=("a", data), **more)


async def test_every_format_has_the_same_words(client: openai.AsyncOpenAI, folder: Path) -> None:
    cd, studio = spoken(folder, 44_100), spoken(folder, 48_000)
    files = {
        "as recorded": (folder / "speech" / f"{NAME}.wav").read_bytes(),
        "stereo wav": wav(pcm(np.repeat(cd, 2, axis=1)), rate=44_100, channels=2),
        "flac": sound(cd, "FLAC", 44_100),
        "mp3": sound(cd, "MP3", 44_100),
        "ogg": sound(studio, "OGG", 48_000, "OPUS"),
        "m4a": film(studio, "mp4", "aac", 48_000),
        "webm": film(studio, "webm", "libopus", 48_000),
    }
    texts = {name: (await transcribed(client, data)).text for name, data in files.items()}
    for opus in ("ogg", "webm"):  # to a model of this size it sounds different
        heard = texts.pop(opus).split()
        assert sum(one != right for one, right in zip(heard, TEXT.split(), strict=True)) <= 1
    assert texts == dict.fromkeys(texts, TEXT)


async def test_times_and_the_stream_agree_with_the_text(client: openai.AsyncOpenAI, folder: Path) -> None:
    data = wav(pcm(spoken(folder)))
    found = await transcribed(client, data, response_format="verbose_json", timestamp_granularities=["word", "segment"])
    assert (found.text, found.language) == (TEXT, "en")
    assert [one.word for one in found.words] == TEXT.split()
    starts = [one.start for one in found.words]
    assert starts == sorted(starts)
    assert all(0 <= one.start <= one.end <= found.duration for one in found.words + found.segments)
    assert all(one.avg_logprob < 0 for one in found.segments)
    events = [event async for event in await transcribed(client, data, stream=True, include=["logprobs"])]
    assert "".join(one.delta for one in events[:-1]) == events[-1].text == TEXT
    assert [one.logprob <= 0 for one in events[-1].logprobs]
    subtitles = await transcribed(client, data, response_format="srt")
    assert subtitles.startswith("1\n00:00:0")


async def test_a_long_file_is_cut_between_words(client: openai.AsyncOpenAI, folder: Path) -> None:
    pause = np.zeros((6000, 1), np.float32)
    names = (NAME, "on-on-three-six-on", "up-stop", "no-off") * 2
    data = sound(np.concatenate([part for name in names for part in (spoken(folder, name=name), pause)]), "FLAC")
    found = await transcribed(client, data, response_format="verbose_json")
    right = " ".join(names).replace("-", " ").split()
    heard = found.text.split()
    assert abs(len(heard) - len(right)) <= len(right) // 5
    assert len(found.segments) >= 3
    assert sum(word in right for word in heard) >= len(heard) * 0.8
    events = [event async for event in await transcribed(client, data, stream=True)]
    assert len(events) >= 4
    assert "".join(one.delta for one in events[:-1]) == events[-1].text
    assert abs(len(events[-1].text.split()) - len(right)) <= len(right) // 5


COMPLETED = "conversation.item.input_audio_transcription.completed"


async def test_a_live_transcription_has_an_item_for_each_utterance(client: openai.AsyncOpenAI, folder: Path) -> None:
    names = ("on-on-three-six-on", "four-yes", "no-off")
    quiet = np.zeros((24_000, 1), np.float32)
    audio = pcm(np.concatenate([part for name in names for part in (quiet, spoken(folder, 24_000, name), quiet)]))
    events: list[Any] = []
    async with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        assert (await connection.recv()).type == "session.created"
        given: Any = {"transcription": {"language": "en"}, "turn_detection": {"type": "server_vad"}}
        await connection.session.update(session={"type": "transcription", "audio": {"input": given}})
        for at in range(0, len(audio), 4800):
            await connection.input_audio_buffer.append(audio=base64.b64encode(audio[at : at + 4800]).decode())
        async for event in connection:
            events.append(event)
            if sum(one.type == COMPLETED for one in events) == len(names):
                break
    heard: list[str] = []
    for done in (event for event in events if event.type == COMPLETED):
        mine = [event for event in events if getattr(event, "item_id", None) == done.item_id]
        kinds = [event.type.rpartition(".")[2] for event in mine if not event.type.endswith(".delta")]
        assert kinds == ["speech_started", "speech_stopped", "committed", "completed"]
        assert "".join(event.delta for event in mine if event.type.endswith(".delta")) == done.transcript
        stopped = next(event for event in mine if event.type.endswith("stopped"))
        assert abs(stopped.audio_end_ms - mine[0].audio_start_ms - 1000 * done.usage.seconds) < 2
        heard += done.transcript.split()
    expected = " ".join(names).replace("-", " ").split()
    assert len(heard) == pytest.approx(len(expected), abs=2)
    assert len(set(heard) & set(expected)) >= len(set(expected)) - 1
