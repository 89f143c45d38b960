"""The life of a session: limits, back-pressure, disconnects, shutdown."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import orjson
import pytest

from lean_ovms.api.app import BODY_FACTOR
from lean_ovms.features.embed.websocket import Closed, WebSocketRefused
from lean_ovms.features.realtime.api import session as session_module
from lean_ovms.features.realtime.api.endpoint import RealtimeService
from lean_ovms.features.speech.params import AHEAD_S
from lean_ovms.features.speech.reply import SpeechReply
from lean_ovms.features.websocket.types import GOING_AWAY, NORMAL, Close
from lean_ovms.observability.logging import Access, JsonLines
from lean_ovms.util import chunked_json
from tests.api.conftest import get
from tests.features.realtime.fakes import COMMIT, FakeSpeechEngine, session, silence, speech_app, tone
from tests.transports.http11.fakes import JumpLoop, jump_loop

DONE = "transcription.done"


@pytest.fixture
def loop() -> Iterator[JumpLoop]:
    with jump_loop() as loop:
        yield loop


def test_an_idle_session_is_closed_after_its_text(loop: JumpLoop) -> None:
    async def main() -> None:
        app, _ = await speech_app(realtime_idle_timeout_s=5)
        async with session(app) as client:
            await client.send(COMMIT)
            await client.append(tone(0.5, 0.35))
            began = loop.time()
            events = await client.until(DONE)
            assert events[-1]["text"] == "three"
            assert await client.closed() == Close(NORMAL, "Realtime session idle timeout.")
            assert 5 <= loop.time() - began < 7
        await stopped(app)

    loop.run_until_complete(main())


def test_a_session_that_waits_for_the_engine_is_not_idle(loop: JumpLoop) -> None:
    async def main() -> None:
        app, engine = await speech_app(realtime_idle_timeout_s=5)
        async with session(app) as client:
            engine.gate.clear()
            await client.append(tone(0.5, 0.35))
            await client.send(COMMIT, final=True)
            waiting = asyncio.ensure_future(client.websocket.receive())
            await asyncio.sleep(60)
            assert not waiting.done()
            engine.let_go()
            assert b"three" in (await waiting).encode()
            assert (await client.closed()).code == NORMAL
        app, _ = await speech_app(max_realtime_session_s=100, realtime_idle_timeout_s=30)
        async with session(app) as client:  # and one that is used has an end, too
            for _ in range(9):
                await asyncio.sleep(10)
                await client.append(silence(0.1))
            began = loop.time()
            assert await client.closed() == Close(NORMAL, "Realtime session reached its maximum duration.")
            assert loop.time() - began <= 11
        await stopped(app)

    loop.run_until_complete(main())


async def stopped(app: object) -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_shutdown_sends_the_text_and_then_closes() -> None:
    app, engine = await speech_app()
    async with session(app) as client:
        await client.send(COMMIT)
        await client.append(tone(0.5, 0.35))
        await engine.caught_up()
        draining = asyncio.ensure_future(app.drain(10))
        assert (await client.until(DONE))[-1]["text"] == "three"
        assert await client.closed() == Close(GOING_AWAY, "the server is shutting down")
        with pytest.raises(Closed):
            await client.send(COMMIT)
        await draining
        with pytest.raises(WebSocketRefused) as refused:
            async with session(app):
                pass
        assert refused.value.response.status == 503


async def test_a_client_that_leaves_frees_the_engine() -> None:
    app, engine = await speech_app()
    async with session(app) as client:
        engine.gate.clear()
        await client.append(tone(0.5, 0.35))
        await client.send(COMMIT, final=True)
        await engine.caught_up()
        assert engine.open
    assert not engine.open
    service = app.services.get(RealtimeService)
    assert not service.sessions
    assert not service._clients


async def _opened(engine: FakeSpeechEngine) -> list[SpeechReply]:
    while not engine.open:
        await asyncio.sleep(0)
    return [*engine.open.values()]


@pytest.mark.slow
async def test_audio_ahead_of_the_engine_is_bounded() -> None:
    """The session stops receiving, so its transport stops reading; then it continues where it was."""
    app, engine = await speech_app(realtime_ahead_s=2)
    block = (tone(0.5, 0.35) + silence(1)) * 3
    async with session(app) as client:
        engine.gate.clear()
        await client.send(COMMIT)

        async def send() -> None:
            for _ in range(30):
                await client.append(block)
            await client.send(COMMIT, final=True)

        sending = asyncio.ensure_future(send())
        [served] = app.services.get(RealtimeService).sessions
        [reply] = await _opened(engine)
        while not (reply.seconds >= AHEAD_S and served._blocked and client.websocket._channel.full):
            await asyncio.sleep(0)  # until everything is full
        assert not sending.done()
        assert served.written_s < AHEAD_S + 3 * len(block) / 32000 < 30 * len(block) / 32000
        engine.let_go()
        await sending
        words = (await client.until(DONE))[-1]["text"].split()
        assert set(words) == {"three"}
        assert len(words) == 90


async def test_sessions_are_limited_in_all_and_for_one_client() -> None:
    app, _ = await speech_app(max_realtime_sessions=4)
    stack = [session(app) for _ in range(3)]
    for one in stack:
        await one.__aenter__()
    with pytest.raises(WebSocketRefused) as refused:
        async with session(app):
            pass
    response = refused.value.response
    assert response.status == 429
    assert isinstance(response.body, bytes)
    assert orjson.loads(response.body)["error"]["code"] == "too_many_sessions"
    await stack.pop().__aexit__(None, None, None)
    async with session(app):
        pass
    for one in stack:
        await one.__aexit__(None, None, None)


async def test_a_bug_closes_with_an_error_code(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: object) -> None:
        raise ZeroDivisionError

    app, _ = await speech_app()
    monkeypatch.setattr(session_module.TranscriptionSession, "_read", broken)
    async with session(app) as client:
        assert await client.closed() == Close(1011, "internal error")
    assert "ZeroDivisionError" in caplog.text


async def test_the_access_line_and_the_metrics() -> None:
    found: list[logging.LogRecord] = []
    logger = logging.getLogger("lean_ovms.access")
    handler, level = logging.Handler(), logger.level
    handler.emit = found.append  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        app, _ = await speech_app(access_log=True, metrics_enable=True)
        async with session(app, x_request_id="mine") as client:
            assert b"lean_ovms_realtime_sessions 1" in app.services.metrics.expose()
            await client.append(tone(0.5, 0.35))
            await client.send(COMMIT, final=True)
            await client.until(DONE)
        lines = [orjson.loads(JsonLines().format(record)) for record in found if isinstance(record.msg, Access)]
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    [line] = lines
    assert (line["status"], line["request_id"], line["path"], line["model"]) == (101, "mine", "/v1/realtime", "w")
    assert line["bytes"] > 100
    assert line["completion_tokens"] == 1
    body = (await get(app, "/metrics")).body
    assert isinstance(body, bytes)
    assert b'lean_ovms_requests_total{method="GET",path="/v1/realtime",status="101"} 1' in body
    assert b'vllm:generation_tokens_total{model_name="w"} 1' in body
    assert b"lean_ovms_realtime_sessions 0" in body


async def test_a_large_message_is_read_beside_the_loop_and_counts_as_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = await speech_app()
    seen: list[tuple[int, bool]] = []
    original = chunked_json.loads

    def loads(data: bytes) -> object:
        seen.append((app.services.bodies.used, threading.current_thread() is threading.main_thread()))
        return original(data)

    monkeypatch.setattr(chunked_json, "loads", loads)
    async with session(app) as client:
        await client.send(COMMIT)
        assert not seen
        await client.append(silence(4) + tone(0.5, 0.35))
        await client.send(COMMIT, final=True)
        assert (await client.until(DONE))[-1]["text"] == "three"
    [(taken, on_loop)] = seen
    assert taken > BODY_FACTOR * 150_000
    assert not on_loop
    assert app.services.bodies.used == 0
    await stopped(app)


async def test_small_messages_reach_the_engine_as_few_blocks() -> None:
    app, engine = await speech_app()
    async with session(app) as client:
        await client.append(silence(0.1))
        await engine.caught_up()
        before, sound = engine.heard, tone(0.5, 0.35)
        queue = next(iter(app.services.get(RealtimeService).sessions)).current.audio
        for at in range(0, len(sound), 2):
            queue.put(sound[at : at + 2])
        await client.send(COMMIT, final=True)
        assert (await client.until(DONE))[-1]["text"] == "three"
        assert engine.heard - before == 2  # the audio and its end
