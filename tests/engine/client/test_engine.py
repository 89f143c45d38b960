"""The engine as the front end sees it, with a child that answers, rejects requests, falls silent and dies."""

import asyncio
import logging
import math
import os
import signal

import pytest

from lean_ovms.config import Config
from lean_ovms.engine import protocol
from lean_ovms.engine.client import engine as engine_module
from lean_ovms.engine.client.child import Child
from lean_ovms.engine.client.engine import FIRST_TRIES, EngineClient
from lean_ovms.errors import BadRequest, RequestTimeout, StartError, Unavailable
from lean_ovms.types import Image
from lean_ovms.types.engine import EngineStats
from tests.engine.client.harness import command, read, run_fast, running, submit, until
from tests.streams import pieces

pytestmark = pytest.mark.slow
"""Each test starts a process."""


async def lost(awaitable):
    """Awaits something that must end with the engine's death."""
    with pytest.raises(Unavailable) as error:
        await awaitable
    assert error.value.code == "engine_restarted"
    assert error.value.retry_after_s >= 1
    return error.value


async def submit_and_read(engine, prompt):
    return await read(await submit(engine, prompt))


def gone(pid):
    return not os.path.exists(f"/proc/{pid}")


# --- a request ---


async def test_a_thread_can_ask_why_an_engine_is_not_ready():
    """Large forms are parsed in a thread, which has no event loop."""
    engine = EngineClient(Config(), command())
    starting = asyncio.ensure_future(engine.start())
    await asyncio.sleep(0)
    error = await asyncio.to_thread(engine.unavailable)
    assert isinstance(error, Unavailable)
    assert 1 <= error.retry_after_s <= 60
    await starting
    await engine.stop()


async def test_the_pixels_of_images_with_one_digest_are_sent_once(monkeypatch):
    sent = []

    def refuse(_, record):
        sent.append(record)
        raise BadRequest("seen")

    monkeypatch.setattr(EngineClient, "_send", refuse)
    images = [Image(1, 1, pixels, digest=digest) for pixels, digest in ((b"abc", "a"), (b"def", "d"), (b"abc", "a"))]
    async with running() as engine:
        with pytest.raises(BadRequest):
            await submit(engine, "x", images=[*images, *[Image(1, 1, b"xyz")] * 2])
    assert sent[0].pixels == [b"abc", b"def", b"", b"xyz", b"xyz"]
    assert sent[0].image_digests == ["a", "d", "a", "", ""]


async def test_who_waits_too_long_to_be_accepted_gets_an_error_and_cancels():
    async with running() as engine:
        with pytest.raises(RequestTimeout):
            await submit(engine, "mute", timeout_s=0.05)
        assert not engine.busy
        reply = await submit(engine, "count 1", timeout_s=60)
        assert await read(reply)


async def test_a_reply_has_what_was_asked_for():
    async with running() as engine:
        reply = await submit(engine, "count 3", n=2, seeds=(1, 2), logprobs=True, want_tokens=True)
        assert (reply.prompt_tokens, reply.tokens) == (3, [1, 2, 3])
        assert await read(reply) == {i: ([0, 1, 2], [0.0, -1.0, -2.0], "stop") for i in (0, 1)}
        assert reply.finished
        plain = await submit(engine, [5, 6], prompt_logprobs=True)
        assert plain.tokens is None
        await until(lambda: plain.prompt_logprobs is not None)
        assert plain.prompt_logprobs.logprobs == [None, -1.0, -2.0]
        plain.cancel()


async def test_a_long_prompt_is_not_json(monkeypatch):
    """A million line breaks in JSON would block the event loop for 16 ms."""
    async with running() as engine:
        encoded = []
        whole = protocol.encode
        monkeypatch.setattr(protocol, "encode", lambda records: encoded.append(whole(records)) or encoded[-1])
        text = "\n" * 2_000_000 + "\u4e2d"
        assert await read(await submit(engine, "count 3" + " " * 200_000)) == {0: ([0, 1, 2], [], "stop")}
        assert await engine.encode([text], True) == [[len(text)]]
        assert await engine.encode([text, "b"], True) == [[len(text)], [1]]
        assert [len(frame) < 1000 for frame in encoded] == [True, True, False]
        for call in (submit(engine, "\ud800" * 70_000), engine.encode(["\ud800" * 70_000], True)):
            with pytest.raises(BadRequest, match="Unicode"):
                await call
        assert not engine.busy


@pytest.mark.parametrize("prompt", ["\ud800", [2**70]])
async def test_a_prompt_that_is_no_json_is_the_clients_fault_and_leaves_nothing(prompt):
    async with running() as engine:
        with pytest.raises(BadRequest, match="cannot be passed"):
            await submit(engine, prompt)
        with pytest.raises(BadRequest):
            await engine.encode(["\ud800"], True)
        assert not engine.busy
        assert await engine.encode(["abc", "d"], True) == [[3], [1]]


async def test_a_frame_that_the_child_would_not_take_is_refused_here(monkeypatch):
    monkeypatch.setattr("lean_ovms.engine.protocol.MAX_FRAME_BYTES", 5000)
    async with running() as engine:
        with pytest.raises(BadRequest, match="too large"):
            await submit(engine, "x" * 6000)
        with pytest.raises(BadRequest, match="too large"):
            await submit(engine, "x" * (protocol.TEXT_PART + 1))  # sent as attachments
        assert not engine.busy


async def test_calls_are_answered():
    async with running() as engine:
        texts, text, stats = await asyncio.gather(
            engine.encode(["ab"], True), engine.decode([4, 5], False), engine.stats()
        )
        assert (texts, text) == ([[2]], "4 5")
        assert stats == EngineStats(
            running=1, queued=2, kv_blocks_used=3, kv_blocks_total=8, steps=4, preemptions=5, recoveries=6
        )
        with pytest.raises(BadRequest, match="no"):
            await engine.encode(["refuse"], True)


# --- never served ---


@pytest.mark.parametrize(("part", "words"), [("load_failed", "no such model: /x"), ("die", "exit status 7")])
async def test_an_engine_that_never_served_is_a_start_error(part, words):
    engine = EngineClient(Config(), command(part))
    with pytest.raises(StartError, match=words):
        await engine.start()
    assert engine.state == "failed"
    assert engine.pid is None
    with pytest.raises(Unavailable):
        await submit(engine, "count 1")
    await engine.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_child_that_is_killed_while_it_loads_is_replaced(number, tmp_path, caplog):
    part = tmp_path / "part"

    async def main():
        part.write_text(f"killed{number:d}")
        engine = EngineClient(Config(engine_load_timeout_s=1e9), command(str(part)))
        start = asyncio.create_task(engine.start())
        await until(lambda: engine.restarts)
        part.write_text("ok")
        await start
        assert await read(await submit(engine, "count 1")) == {0: ([0], [], "stop")}
        await engine.stop()
        part.write_text(f"killed{number:d}")
        engine = EngineClient(Config(engine_load_timeout_s=1e9), command(str(part)))
        with pytest.raises(StartError, match="died while loading") as error:
            await engine.start()
        assert error.value.temporary
        assert (engine.state, engine.restarts) == ("failed", FIRST_TRIES - 1)
        await engine.stop()

    with caplog.at_level(logging.CRITICAL):
        run_fast(main, speed=10.0)  # on a faster loop the child would be killed before its own end is noticed


# --- died later ---


@pytest.mark.parametrize("how", ["die", "garbage", "submit_back", "half"])
async def test_a_death_answers_everybody_at_once(how):
    async with running() as engine:
        reply = await submit(engine, "hang")
        waiting = [
            asyncio.create_task(read(reply)),
            asyncio.create_task(submit(engine, "mute")),
            asyncio.create_task(engine.encode(["hang"], True)),
        ]
        await until(lambda: len(engine._replies._replies) == 3)
        if how == "half":
            last = pieces(await submit(engine, how))
            assert [t.tokens for t in await anext(last)] == [[1]]
            await lost(anext(last))
        else:
            await lost(submit_and_read(engine, how))
        for task in waiting:
            await lost(task)
        assert engine.state == "restarting"
        assert not engine.busy


async def test_a_child_that_dies_is_replaced_and_serves_again():
    async with running() as engine:
        first, pid = (await submit(engine, "count 1")).id, engine.pid
        await lost(submit_and_read(engine, "die"))
        with pytest.raises(Unavailable, match="restarted") as error:
            await submit(engine, "count 1")
        assert 1 <= error.value.retry_after_s <= math.ceil(0.5 + engine._load_s)
        with pytest.raises(Unavailable):
            await engine.encode(["a"], True)
        await until(lambda: engine.state == "ready")
        assert engine.restarts == 1
        assert engine.pid != pid
        assert gone(pid)
        again = await submit(engine, "count 2")
        assert again.id > first + 1
        assert await read(again) == {0: ([0, 1], [], "stop")}


def test_restarts_back_off_and_go_on_for_ever(tmp_path, caplog):
    part = tmp_path / "part"
    part.write_text("ok")

    async def main():
        waits = []
        async with running(str(part)) as engine:
            part.write_text("load_failed")
            os.kill(engine.pid, signal.SIGKILL)
            before = 0
            while engine.restarts < 8:
                await until(lambda before=before: engine.restarts > before)
                before = engine.restarts
                waits.append(engine._backoff_s())
                if before == 2:
                    assert engine.state == "restarting"
            assert engine.state == "failed"
            with pytest.raises(Unavailable, match="keeps trying") as error:
                await submit(engine, "count 1")
            assert 1 <= error.value.retry_after_s <= 60
            part.write_text("ok")
            await until(lambda: engine.state == "ready")
            assert await read(await submit(engine, "count 1")) == {0: ([0], [], "stop")}
        assert waits[:6] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]

    with caplog.at_level(logging.ERROR):
        run_fast(main, 300.0)
    assert "no such model: /x" in caplog.text


def test_the_model_is_told_of_a_restart_before_requests_are_and_refuses_what_it_cannot_serve():
    async def main():
        calls = []

        async def follow():
            calls.append(engine.state)
            if len(calls) == 2:
                raise StartError("no chat template")
            if len(calls) == 3:
                raise RuntimeError("a fault of the server's")
            if len(calls) == 4:
                os.kill(engine.pid, signal.SIGKILL)
                await until(lambda: engine.pid is None)

        async with running() as engine:
            engine.on_restart = follow
            for restarts in (1, 5):
                os.kill(engine.pid, signal.SIGKILL)
                await until(lambda restarts=restarts: engine.restarts == restarts and engine.state == "ready")
            assert calls == ["restarting"] * 5
            assert await read(await submit(engine, "count 1")) == {0: ([0], [], "stop")}

    run_fast(main)


def test_a_healthy_life_makes_the_next_death_a_first_one(monkeypatch):
    """The test sets after what time a life is healthy, because a minute on the fast loop is only a moment on a busy
    machine."""

    async def main():
        monkeypatch.setattr(engine_module, "HEALTHY_AFTER_S", 1e9)
        async with running() as engine:
            for expected in (1, 2):
                os.kill(engine.pid, signal.SIGKILL)
                await until(lambda: engine.state == "restarting")
                await until(lambda: engine.state == "ready")
                assert engine._unready == expected
            monkeypatch.setattr(engine_module, "HEALTHY_AFTER_S", 60.0)
            await asyncio.sleep(61)
            os.kill(engine.pid, signal.SIGKILL)
            await until(lambda: engine.state == "restarting")
            assert engine._backoff_s() == 0.5

    run_fast(main, 300.0)


@pytest.mark.parametrize(("part", "same"), [("ok", True), ("vocabulary", False)])
def test_a_new_vocabulary_is_taken_and_an_equal_one_keeps_its_object(part, same):
    async def main():
        async with running(part) as engine:
            before = engine.vocabulary
            assert (before.pieces[:2], before.special) == ([b"a", b"\xff"], frozenset({0}))
            os.kill(engine.pid, signal.SIGKILL)
            await until(lambda: engine.restarts == 1 and engine.state == "ready")
            assert (engine.vocabulary is before) is same
            assert (engine.vocabulary == before) is same

    run_fast(main)


# --- silence ---


def test_a_child_that_stands_still_is_killed_and_replaced():
    async def main():
        async with running(engine_watchdog_s=30.0) as engine:
            pid = engine.pid
            await lost(submit_and_read(engine, "stop"))
            await until(lambda: engine.state == "ready")
            assert gone(pid)

    run_fast(main, 200.0)


def test_a_child_is_asked_before_it_is_killed():
    async def main():
        async with running(engine_watchdog_s=20.0) as engine:
            reply = await submit(engine, "slow 3")  # one token per ping
            assert await read(reply) == {0: ([3, 2, 1, 0], [], "stop")}
            assert engine.restarts == 0

    run_fast(main, 200.0)


# --- the end ---


async def test_stop_answers_everybody_and_leaves_no_process():
    async with running() as engine:
        pid = engine.pid
        reply = await submit(engine, "hang")
        task = asyncio.create_task(engine.encode(["hang"], True))
        await asyncio.sleep(0)
        await asyncio.gather(engine.stop(), engine.stop())
        for waiting in (read(reply), task, submit(engine, "count 1")):
            with pytest.raises(Unavailable, match="shutting down"):
                await waiting
        assert (engine.state, engine.pid) == ("stopped", None)
        assert gone(pid)
        reply.cancel()


def test_stop_while_restarting_ends_the_restarting():
    async def main():
        async with running() as engine:
            os.kill(engine.pid, signal.SIGKILL)
            await until(lambda: engine.state == "restarting")
            await engine.stop()
            await asyncio.sleep(10)
            assert engine.state == "stopped"
            assert engine.pid is None

    run_fast(main)


def test_stop_while_a_new_child_loads(tmp_path):
    part = tmp_path / "part"
    part.write_text("ok")

    async def main():
        async with running(str(part)) as engine:
            part.write_text("hang")
            os.kill(engine.pid, signal.SIGKILL)
            await until(lambda: engine.restarts == 1 and engine.pid)
            pid = engine.pid
            await engine.stop()
            assert gone(pid)

    run_fast(main)


def test_stop_while_the_first_child_loads():
    async def main():
        engine = EngineClient(Config(engine_load_timeout_s=1e9), command("hang"))
        start = asyncio.create_task(engine.start())
        await until(lambda: engine.pid)
        await engine.stop()
        with pytest.raises(StartError):
            await start
        assert (engine.state, engine.pid) == ("stopped", None)

    run_fast(main)


async def test_stop_at_the_moment_when_the_first_child_has_loaded(monkeypatch, caplog):
    engine, stopping, first = EngineClient(Config(), command()), [], Child._handle_first

    def stop_and_go_on(child, records):
        stopping.append(asyncio.ensure_future(engine.stop()))
        return first(child, records)

    monkeypatch.setattr(Child, "_handle_first", stop_and_go_on)
    with pytest.raises(StartError):
        await engine.start()
    await asyncio.gather(*stopping)
    assert (engine.state, engine.pid, engine.restarts) == ("stopped", None, 0)
    assert "died" not in caplog.text


async def test_an_engine_that_was_stopped_does_not_start():
    engine = EngineClient(Config(), command())
    await engine.stop()
    with pytest.raises(StartError, match="stopped"):
        await engine.start()
    assert engine.state == "stopped"


# --- with the real child, on the fake pipeline ---


async def test_the_real_child_serves_dies_and_is_replaced():
    engine = EngineClient(Config(fake_engine=True))
    await engine.start()
    try:
        (ids,) = await engine.encode(["<|user|>hello"], False)
        text = await engine.decode(ids[1:], True)
        assert text == "hello"
        reply = await submit(
            engine, "<|user|>hello", add_special_tokens=False, want_tokens=True, temperature=0.0, max_tokens=20
        )
        assert (reply.tokens, reply.prompt_tokens) == (ids, len(ids))
        tokens, _, reason = (await read(reply))[0]
        assert (len(tokens) > 0, reason) == (True, "stop")
        await lost(submit_and_read(engine, "<|die|>"))
        await until(lambda: engine.state == "ready")
        stats = await engine.stats()
        assert (stats.running, stats.queued, stats.kv_blocks_used) == (0, 0, 0)
        assert (await read(await submit(engine, "<|user|>hello", temperature=0.0, max_tokens=20)))[0][0] == tokens
    finally:
        pid = engine.pid
        await engine.stop()
    assert gone(pid)
