"""Attacks with audio files: on the decoder, on memory, and with the form around them. Uses real decoder processes."""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import orjson
import pytest

from bench.processes import rss_mb
from lean_ovms.api.app import App
from lean_ovms.features.media_files.audio.decoder import AudioDecoder
from lean_ovms.models.text_model import TextModel
from lean_ovms.server.run import close
from lean_ovms.types import Request
from tests.fakes import FakeEngine, say
from tests.features.media_files.audio.test_decode import BEGINNINGS, HEADERS, JUNK
from tests.features.named_keys.files import ALICE, written
from tests.features.speech.scripts import speech_model
from tests.forms import BOUNDARY, Part, encoded, form_request
from tests.recordings import plain_wav, sound, wav

PATH = "/v1/audio/transcriptions"
GOOD = plain_wav(0.5)
MAX_S = 60.0


@pytest.fixture
async def app() -> AsyncIterator[App]:
    model, _ = await speech_model(max_audio_s=MAX_S)
    made = App(model.config, [model])
    yield made
    assert made.services.get(AudioDecoder).slots.used == 0
    assert made.services.bodies.used == 0
    await made.close()
    made.services.offload.close()


async def ask(app: App, file: bytes) -> tuple[int, str]:
    """Returns the status, and the message of the error."""
    response = await app.handle(form_request(PATH, [("model", "w"), ("file", ("a.wav", file))]))
    assert isinstance(response.body, bytes)
    await response.aclose()
    body = orjson.loads(response.body)
    return response.status, body["error"]["message"] if response.status != 200 else ""


HOSTILE = {
    **{f"junk: {name}": data for name, data in JUNK.items()},
    **{f"header: {name}": data for name, (data, _) in HEADERS.items()},
    **{f"beginning: {name}": data for name, data in BEGINNINGS.items()},
    "not numbers": wav(np.full(4000, np.nan, "<f4").tobytes(), tag=3, bits=32),
    "a bomb": sound(np.zeros((90 * 16_000, 1), np.float32), "FLAC"),
    "a bomb of 192 kHz": sound(np.zeros((90 * 192_000, 1), np.float32), "FLAC", 192_000),
}


async def test_t18_hostile_audio_is_a_400_and_others_are_served(app: App) -> None:
    await ask(app, GOOD)
    before = rss_mb(os.getpid())
    for name, data in HOSTILE.items():
        others = asyncio.create_task(ask(app, GOOD)) if "bomb" in name else None
        status, message = await ask(app, data)
        assert (status, bool(message)) == (400, True), name
        assert "/" not in message.replace("--max_audio_s", ""), message
        if others is not None:
            assert (await others)[0] == 200
    assert (await ask(app, GOOD))[0] == 200
    assert rss_mb(os.getpid()) - before < 64


async def test_t18_only_listed_formats_reach_a_library(app: App) -> None:
    decoder = app.services.get(AudioDecoder)
    for data in JUNK.values():
        assert (await ask(app, data))[0] == 400
    assert decoder.pids == []


BROKEN_FORMS = {
    "thousands of parts": encoded([("x", ("y", b"z"))] * 20_000),
    "near boundaries": encoded([("file", ("a", f"\r\n--{BOUNDARY[:-1]}".encode() * 50_000))])[:-4],
    "carriage returns": encoded([("file", ("a", b"\r" * 1_000_000))])[:-4],
    "an endless header": f"--{BOUNDARY}\r\nX: ".encode() + b"x" * 1_000_000,
    "endless headers": f"--{BOUNDARY}\r\n".encode() + b"X: y\r\n" * 200_000,
    "a text of megabytes": encoded([("prompt", b"x" * (2 << 20))]),
    "blank lines": b"\r\n" * 500_000,
    "boundaries": f"--{BOUNDARY}\r\n".encode() * 50_000,
}


async def test_t35_a_form_that_costs_too_much_is_a_400(app: App) -> None:
    for name, body in BROKEN_FORMS.items():
        response = await app.handle(form_request(PATH, body=body))
        await response.aclose()
        assert response.status == 400, name
        assert isinstance(response.body, bytes)
        assert orjson.loads(response.body)["error"]["message"]
    assert (await ask(app, GOOD))[0] == 200


async def test_t23_a_client_that_leaves_ends_its_decoder(app: App) -> None:
    """While the file is decoded, and while its samples wait to be taken."""
    decoder = app.services.get(AudioDecoder)
    data = sound(np.zeros((50 * 16_000, 1), np.float32), "FLAC")
    for turns in (1, 3, 10, 30):
        task = asyncio.create_task(ask(app, data))
        for _ in range(turns):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert decoder.slots.used == 0


async def test_t18_a_bomb_in_a_conversation_is_a_400(app: App) -> None:
    config = app.config.replace(model_name="m", task="", audio_input_model="w")
    engine = FakeEngine(say("fine"))
    model = TextModel(config, engine)  # type: ignore[arg-type]
    await model.load()
    app.registry.install(model)
    for name in ("a bomb", "not numbers"):
        parts = [
            {"type": "input_audio", "input_audio": {"data": b64encode(data).decode()}} for data in (GOOD, HOSTILE[name])
        ]
        body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": parts}]})
        response = await app.handle(Request("POST", "/v1/chat/completions", body=body))
        assert isinstance(response.body, bytes)
        await response.aclose()
        assert (response.status, orjson.loads(response.body)["error"]["param"]) == (400, "messages[0].content[1]"), name
    assert engine.submitted == []


async def test_a_transcription_counts_as_a_request_of_its_key_until_its_stream_is_closed(tmp_path: Path) -> None:
    model, _ = await speech_model(api_key_file=written(tmp_path, {"alice": {"max_parallel_requests": 1}}))
    app = App(model.config, [model])
    parts: list[Part] = [("model", "w"), ("stream", "true"), ("file", ("a.wav", plain_wav(3)))]
    first = await app.handle(form_request(PATH, parts, **ALICE))
    second = await app.handle(form_request(PATH, parts, **ALICE))
    assert (first.status, second.status) == (200, 429)
    for response in (first, second):
        await response.aclose()
    last = await app.handle(form_request(PATH, parts, **ALICE))
    await last.aclose()
    assert last.status == 200
    await close(app)
