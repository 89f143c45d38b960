"""/realtime over sockets with common clients: the openai package, and websockets like vLLM's examples."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import wave
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import websockets

from lean_ovms.embed import running
from tests.archives import extract
from tests.e2e.conftest import Process, start_process
from tests.features.realtime.fakes import APPEND, COMMIT, silence, tone

DATA = Path(__file__).parents[1] / "data" / "whisper_words.zip"
FAKE = {"fake_engine": True, "task": "speech2text", "model_name": "w", "api_key": "secret"}
COMPLETED = "conversation.item.input_audio_transcription.completed"


def base64_of(audio: bytes) -> str:
    return base64.b64encode(audio).decode()


async def transcripts(client: openai.AsyncOpenAI, audio: bytes, count: int, **query: Any) -> list[Any]:
    """Returns the events up to a number of transcripts of this audio (24 kHz), sent in pieces of 100 ms."""
    events: list[Any] = []
    async with client.realtime.connect(**query) as connection:
        assert (await connection.recv()).type == "session.created"
        await connection.session.update(
            session={
                "type": "transcription",
                "audio": {"input": {"transcription": {"language": "en"}, "turn_detection": {"type": "server_vad"}}},
            }
        )
        for at in range(0, len(audio), 4800):
            await connection.input_audio_buffer.append(audio=base64_of(audio[at : at + 4800]))
        async for event in connection:
            events.append(event)
            if sum(one.type == COMPLETED for one in events) == count:
                break
    return events


def check_items(events: list[Any]) -> list[str]:
    """Returns the transcripts of complete items, and checks that each equals its deltas and has plausible times."""
    texts = []
    for done in (event for event in events if event.type == COMPLETED):
        mine = [event for event in events if getattr(event, "item_id", None) == done.item_id]
        assert [event.type.rpartition(".")[2] for event in mine if not event.type.endswith(".delta")] == [
            "speech_started",
            "speech_stopped",
            "committed",
            "completed",
        ]
        assert "".join(event.delta for event in mine if event.type.endswith(".delta")) == done.transcript
        started, stopped = mine[0], next(event for event in mine if event.type.endswith("stopped"))
        assert abs(stopped.audio_end_ms - started.audio_start_ms - 1000 * done.usage.seconds) < 2
        texts.append(done.transcript)
    return texts


async def test_vllms_client_and_a_browsers_handshake_on_the_scripted_engine() -> None:
    async with running(rest_port=0, rest_bind_address="127.0.0.1", drain_timeout_s=10, **FAKE) as server:
        url = server.addresses[0].replace("http", "ws") + "/v1/realtime"
        offered: Any = ["realtime", "openai-insecure-api-key.secret"]
        async with websockets.connect(url, subprotocols=offered) as browser:
            assert browser.subprotocol == "realtime"
        client = await websockets.connect(url, additional_headers={"Authorization": "Bearer secret"})
        assert client.protocol.extensions == []  # the client had offered compression
        assert json.loads(await client.recv())["type"] == "session.created"
        await client.send(json.dumps({"type": "session.update", "model": "w"}))
        await client.send(json.dumps({"type": COMMIT}))
        audio = tone(0.5, 0.25) + tone(0.5, 0.65) + silence(1)
        for at in range(0, len(audio), 4096):
            message = json.dumps({"type": APPEND, "audio": base64_of(audio[at : at + 4096])})
            await client.send([message[:100], message[100:]])  # in fragments
        await client.send(json.dumps({"type": COMMIT, "final": True}))
        events = [json.loads(await client.recv())]
        while events[-1]["type"] != "transcription.done":
            events.append(json.loads(await client.recv()))
        assert events[-1]["text"] == "two six"
        await (await client.ping())
        await client.send(json.dumps({"type": APPEND, "audio": base64_of(tone(0.5, 0.45))}))
        await (await client.ping())  # the server has received everything
        await asyncio.sleep(0.05)
    rest = [json.loads(message) async for message in client]  # until the server has stopped
    assert rest[-1]["text"] == "four"
    assert client.close_code == 1001


# --- a real model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = extract(DATA, tmp_path_factory.mktemp("whisper_words"))
    with start_process("--model_path", str(folder / "model"), "--model_name", "words") as process:
        process.wait_for("ready: words")
        yield process


def recording(name: str) -> tuple[bytes, list[str]]:
    """Returns samples at 16 kHz, and their words."""
    with zipfile.ZipFile(DATA) as files, wave.open(io.BytesIO(files.read(f"speech/{name}.wav"))) as file:
        assert file.getframerate() == 16000
        return file.readframes(file.getnframes()), name.split("-")


def at_24khz(audio: bytes) -> bytes:
    from lean_ovms.features.realtime.live_decoder import LiveDecoder

    decoder = LiveDecoder("pcm", 16000, 24000)
    return decoder.feed(audio) + decoder.flush()


@pytest.mark.model
async def test_the_openai_client_on_a_real_model(server: Process) -> None:
    names = ("on-on-three-six-on", "four-yes", "no-off")
    audio = b"".join(silence(0.6) + recording(name)[0] + silence(1.2) for name in names)
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="-") as client:
        events = await transcripts(client, at_24khz(audio), 3, extra_query={"intent": "transcription"})
    texts = check_items(events)
    words = " ".join(texts).split()
    expected = [word for name in names for word in name.split("-")]
    assert len(words) == pytest.approx(len(expected), abs=2)
    assert len(set(words) & set(expected)) >= len(set(expected)) - 1


@pytest.mark.model
async def test_vllms_client_on_a_real_model(server: Process) -> None:
    audio, words = recording("on-on-three-six-on")
    async with websockets.connect(server.url.replace("http", "ws") + "/v1/realtime") as client:
        await client.send(json.dumps({"type": "session.update", "model": "words"}))
        await client.send(json.dumps({"type": COMMIT}))
        for at in range(0, len(audio), 8192):
            await client.send(json.dumps({"type": APPEND, "audio": base64_of(audio[at : at + 8192])}))
        await client.send(json.dumps({"type": COMMIT, "final": True}))
        events = [json.loads(await client.recv())]
        while events[-1]["type"] != "transcription.done":
            events.append(json.loads(await client.recv()))
    text = events[-1]["text"]
    assert "".join(event["delta"] for event in events if event["type"] == "transcription.delta") == text
    assert set(re.findall(r"\w+", text)) >= {"on", "three", "six"}
    assert events[-1]["usage"]["completion_tokens"] >= len(words)
