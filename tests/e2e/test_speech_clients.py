"""OpenAI's client transcribes with a server process of the fake engine, which says a word for each half second, by its
loudness. tests/features/speech/api has every field and format, and the forms of other servers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import openai
import pytest

from tests.e2e.conftest import Process, start_process
from tests.recordings import pcm, sound, tone, wav

LOUDNESS = (0.35, 0.15, 0.75)
TEXT = "three one seven"


def speech(rate: int = 16_000, channels: int = 1, repeated: int = 1) -> np.ndarray:
    """Returns half a second of sound for each loudness."""
    one = np.concatenate([2 * loudness * tone(0.5, rate=rate, channels=channels) for loudness in LOUDNESS])
    return np.concatenate([one] * repeated)


WAV = wav(pcm(speech()))


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    with start_process("--fake_engine", "--task", "speech2text", "--model_name", "w") as process:
        process.wait_for("ready: w")
        yield process


@pytest.fixture
def client(server: Process) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


def test_openais_client_transcribes(client: openai.OpenAI) -> None:
    found = client.audio.transcriptions.create(model="w", file=("a.wav", WAV), language="en", temperature=0.0)
    assert found.text == TEXT
    assert found.usage is not None
    assert found.usage.type == "duration"
    assert found.usage.seconds == 2


def test_openais_client_streams_a_transcription(client: openai.OpenAI) -> None:
    stream = client.audio.transcriptions.create(model="w", file=WAV, stream=True, include=["logprobs"])
    *deltas, done = list(stream)
    assert [type(one).__name__ for one in deltas] == ["TranscriptionTextDeltaEvent"] * 3
    assert "".join(one.delta for one in deltas) == done.text == TEXT
    assert deltas[0].logprobs
    assert done.usage.input_token_details.audio_tokens == 150


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_openais_client_translates(client: openai.OpenAI) -> None:
    found = client.audio.translations.create(model="w", file=("a.flac", sound(speech(), "FLAC")), prompt="numbers")
    assert found.text == "three-en one-en seven-en"
    verbose = client.audio.translations.create(model="w", file=WAV, response_format="verbose_json")
    assert verbose.segments is not None
    assert verbose.duration == 1.5


# --- OVMS's
