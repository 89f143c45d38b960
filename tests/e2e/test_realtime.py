"""/realtime over sockets: a client like those of vLLM, and the handshake of a browser."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import websockets

from lean_ovms.embed import running
from tests.features.realtime.fakes import APPEND, COMMIT, silence, tone

FAKE = {"fake_engine": True, "task": "speech2text", "model_name": "w", "api_key": "secret"}


def base64_of(audio: bytes) -> str:
    return base64.b64encode(audio).decode()


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
