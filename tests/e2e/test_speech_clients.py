"""Clients that transcribe, with a server process of the fake engine: OpenAI's own, and requests like those of vLLM's
and OVMS's examples and tests. The fake engine says a word for each half second, by its loudness."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
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


@pytest.fixture(params=["/v1", "/v3"])
def client(server: Process, request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + request.param, api_key="none", max_retries=0, timeout=300) as client:
        yield client


@pytest.fixture
def http(server: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=300) as client:
        yield client


# --- OpenAI's client


def test_openais_client_transcribes(client: openai.OpenAI) -> None:
    found = client.audio.transcriptions.create(model="w", file=("a.wav", WAV), language="en", temperature=0.0)
    assert found.text == TEXT
    assert found.usage is not None
    assert found.usage.type == "duration"
    assert found.usage.seconds == 2


def test_every_response_format(client: openai.OpenAI) -> None:
    create = client.audio.transcriptions.create
    verbose = create(model="w", file=WAV, response_format="verbose_json", timestamp_granularities=["word", "segment"])
    assert (verbose.text, verbose.language, verbose.duration) == (TEXT, "en", 1.5)
    assert verbose.segments is not None
    assert verbose.words is not None
    assert [word.word for word in verbose.words] == TEXT.split()
    assert [word.end - word.start for word in verbose.words] == [0.5] * 3
    assert verbose.segments[0].id == 0
    assert create(model="w", file=WAV, response_format="text") == TEXT
    assert create(model="w", file=WAV, response_format="srt").startswith("1\n00:00:00,000 --> 00:00:01,500\nthree one")
    assert create(model="w", file=WAV, response_format="vtt").startswith("WEBVTT\n\n00:00:00.000 --> ")


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


def test_a_long_file_streams_before_it_is_read(client: openai.OpenAI) -> None:
    data = sound(speech(repeated=60), "FLAC")
    found = client.audio.transcriptions.create(model="w", file=("long.flac", data), response_format="verbose_json")
    assert found.text.split() == TEXT.split() * 60
    assert found.segments is not None
    assert len(found.segments) >= 3
    assert [one.id for one in found.segments] == list(range(len(found.segments)))
    assert found.segments[-1].seek > 2900
    events = client.audio.transcriptions.create(model="w", file=("long.flac", data), stream=True)
    assert "".join(one.delta for one in events if one.type == "transcript.text.delta") == found.text


# --- vLLM's


def chunks(http: httpx.Client, path: str, data: dict[str, Any]) -> list[dict[str, Any]]:
    """Reads a stream like vLLM's example client: lines after "data: ", up to [DONE]."""
    found: list[dict[str, Any]] = []
    with http.stream("POST", path, data=data, files={"file": ("a.wav", WAV)}) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: "):
                if line == "data: [DONE]":
                    return found
                found.append(json.loads(line.removeprefix("data: ")))
    raise AssertionError("no [DONE]")


@pytest.mark.parametrize("name", ["transcriptions", "translations"])
def test_vllms_example_of_a_stream(http: httpx.Client, name: str) -> None:
    data = {"model": "w", "language": "en", "response_format": "json", "stream": True, "temperature": 0.0}
    found = chunks(http, f"/v1/audio/{name}", data)
    text = "".join(one["choices"][0]["delta"].get("content") or "" for one in found)
    assert text == (TEXT if name == "transcriptions" else TEXT.replace(" ", "-en ") + "-en")
    assert [one["choices"][0].get("finish_reason") for one in found].count("stop") == 1
    assert {one["object"] for one in found} == {f"{name.removesuffix('s')}.chunk"}


# --- OVMS's


def test_ovmss_requests(http: httpx.Client) -> None:
    path = "/v3/audio/transcriptions"
    plain = http.post(path, files={"file": ("speech.wav", WAV, "audio/wav"), "model": (None, "w")})
    assert plain.json()["text"] == TEXT
    timed = http.post(
        path,
        files=[
            ("file", ("speech.wav", WAV)),
            ("model", (None, "w")),
            ("timestamp_granularities[]", (None, "segment")),
            ("timestamp_granularities[]", (None, "word")),
        ],
    ).json()
    assert timed["segments"][0]["text"].strip() == TEXT
    assert timed["words"][0] == {"word": "three", "start": 0.0, "end": 0.5}
    wrong = http.post(path, files={"file": ("a.wav", WAV), "timestamp_granularities[]": (None, "line")})
    assert wrong.json()["error"]["message"].startswith("Invalid timestamp_granularities type.")
    streamed = http.post(path, files={"file": ("a.wav", WAV), "stream": (None, "true"), "model": (None, "w")})
    assert streamed.text.startswith('data: {"type":"transcript.text.delta","delta":"three"')
    assert '"type":"transcript.text.done"' in streamed.text
