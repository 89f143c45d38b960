"""A speech model in the front end: events, limits, and the effect of an engine's death. Its engine is a scripted
child."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from lean_ovms.composition import compose
from lean_ovms.config import Config
from lean_ovms.engine import protocol
from lean_ovms.engine.client.replies import ReplyRouter
from lean_ovms.errors import EngineFailure, RequestTimeout
from lean_ovms.features.metrics.counts import PrometheusMetrics
from lean_ovms.features.speech import records
from lean_ovms.features.speech.child.fake_recognizer import DIE
from lean_ovms.features.speech.model import SpeechModel
from lean_ovms.features.speech.params import (
    SpeechEvent,
    TextDelta,
    TranscribeParams,
    TurnDetection,
    TurnStarted,
    WindowDone,
)
from lean_ovms.features.speech.reply import AHEAD_BYTES, BLOCK_BYTES, MAX_RESTARTS, SpeechReply
from lean_ovms.models.model import make_model
from lean_ovms.observability.records import RequestRecord, current_record
from tests.features.speech.child.rig import sound

PARAMS = TranscribeParams()
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[SpeechModel]:
    made = make_model(Config(fake_engine=True, task="speech2text", model_name="w"))
    assert isinstance(made, SpeechModel)
    await made.load()
    yield made
    await made.stop()


async def blocks(data: bytes, size: int = 9999) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def listen(model: SpeechModel, data: bytes, **params: Any) -> list[SpeechEvent]:
    return [event async for event in model.transcribe(blocks(data), TranscribeParams(**params))]


def text(events: list[SpeechEvent]) -> str:
    windows = "".join(event.text for event in events if isinstance(event, WindowDone))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == windows
    return windows


async def test_blocks_of_any_length_are_one_audio(model: SpeechModel) -> None:
    events = await listen(model, sound((0.35, 2), (0.62, 1)), words=True, segments=True)
    assert text(events) == " three three three three six six"
    last = events[-1]
    assert isinstance(last, WindowDone)
    assert [(word.word, word.start) for word in last.words][:2] == [("three", 0.0), ("three", 0.5)]
    assert [segment.text for segment in last.segments] == [last.text]
    assert (last.language, last.language_probability) == ("en", 0.9)
    assert model.speech.languages == ["en", "de"]
    assert "2 languages" in model.summary


async def test_a_request_is_recorded_and_counted(model: SpeechModel) -> None:
    record = RequestRecord(request_id="r", method="POST", path="/", peer="", started=0.0)
    token, before = current_record.set(record), model.metrics
    metrics = model.metrics = PrometheusMetrics(compose().metrics)
    try:
        await listen(model, sound((0.35, 2), (0, 8), (0.4, 1)))
        with pytest.raises(EngineFailure, match="could not process"):
            await listen(model, sound((0.35, 2)), hotwords="<|raise|>")
    finally:
        current_record.reset(token)
        model.metrics = before
    assert [(one.completion_tokens, one.finish_reasons) for one in record.generations] == [
        (6, ("stop",)),
        (0, ("error",)),
    ]
    shown = metrics.expose()
    assert b'lean_ovms_audio_seconds_total{model_name="w"} 11.0' in shown
    assert b'lean_ovms_audio_window_seconds_count{model_name="w"} 2' in shown


async def test_a_closed_transcription_is_cancelled_and_its_audio_is_closed(model: SpeechModel) -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield sound((0.3, 1))
                await asyncio.sleep(0)
        finally:
            closed.set()

    events = model.transcribe(endless(), PARAMS)
    assert isinstance(await anext(events), TextDelta)
    await events.aclose()
    assert closed.is_set()
    assert not model.engine.busy
    assert (await model.stats()).running == 0


async def test_a_request_has_a_time_limit_unless_it_is_live(
    model: SpeechModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "config", model.config.replace(request_timeout_s=0.01))

    async def slow() -> AsyncIterator[bytes]:
        yield sound((0.3, 1), (0, 1))
        await asyncio.sleep(0.1)

    with pytest.raises(RequestTimeout):
        async for _ in model.transcribe(slow(), PARAMS):
            pass
    live = TranscribeParams(live=True, turns=TurnDetection())
    found = [event async for event in model.transcribe(slow(), live)]
    assert isinstance(found[0], TurnStarted)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarts engines without waiting."""
    monkeypatch.setattr("lean_ovms.engine.client.engine.BACKOFF_S", (0.01,))


async def until_ready(model: SpeechModel) -> None:
    while not model.ready:
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_requests_go_on_when_their_engine_is_killed(model: SpeechModel, at_once: None) -> None:
    """Two requests are running, and both continue as if nothing had happened."""
    data = [sound((0.35, 70), (0.72, 20)), sound((0.55, 80))]
    expected = [await listen(model, one, words=True) for one in data]

    async def killed(one: bytes, kill: bool) -> list[SpeechEvent]:
        found = []
        async for event in model.transcribe(blocks(one), TranscribeParams(words=True)):
            found.append(event)
            if kill and len(found) == 70:  # within the second window
                assert model.engine.pid is not None
                os.kill(model.engine.pid, signal.SIGKILL)
        return found

    first, second = await asyncio.gather(killed(data[0], True), killed(data[1], False))
    assert text(first) == text(expected[0])
    assert text(second) == text(expected[1])
    assert [event for event in first if isinstance(event, WindowDone)] == [
        event for event in expected[0] if isinstance(event, WindowDone)
    ]
    assert not model.engine.busy


@pytest.mark.slow
async def test_a_window_that_kills_the_engine_is_tried_once_more_and_fails_alone(
    model: SpeechModel, at_once: None
) -> None:
    await until_ready(model)
    restarts = model.engine.restarts
    good = asyncio.ensure_future(listen(model, sound((0.35, 40))))
    with pytest.raises(EngineFailure, match="stopped each time"):
        await listen(model, sound((0.35, 2)), hotwords=DIE)
    assert text(await good).split() == ["three"] * 80
    # There may be a third restart, if the engine's last record is lost with its pipe: that the window has begun.
    assert restarts + 2 <= model.engine.restarts <= restarts + MAX_RESTARTS


# --- replies


class Engine:
    """The other end of a router."""

    def __init__(self, **params: Any) -> None:
        self.sent: list[protocol.Record] = []
        self.router = ReplyRouter(self.sent.append)
        self.reply = self.router.add_lasting(
            lambda number: SpeechReply(number, self.sent.append, self.router.close, TranscribeParams(**params), "")
        )

    @property
    def audio(self) -> int:
        """Returns the bytes that have arrived."""
        return sum(len(record.data) for record in self.sent if isinstance(record, records.Audio))

    def window(self, samples: int, text: str) -> None:
        window = {"start": 0.0, "end": samples / 16000, "text": text, "language": "en"}
        self.router.deliver([records.WindowTranscribed(self.reply.id, window, samples, {"n": samples})])


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield bytes(BLOCK_BYTES * 3)


async def settled() -> None:
    for _ in range(400):
        await asyncio.sleep(0)


async def test_no_more_audio_is_sent_than_the_engine_may_have() -> None:
    engine = Engine()
    engine.reply.begin(endless())
    await settled()
    assert engine.audio == AHEAD_BYTES
    engine.window(16000 * 20, "a")
    await settled()
    assert engine.audio == AHEAD_BYTES + 5 * BLOCK_BYTES  # 4 s of audio
    await engine.reply.aclose()
    assert isinstance(engine.sent[-1], protocol.Cancel)
    assert not engine.router.busy


async def test_a_new_engine_gets_the_rest_and_no_text_comes_twice() -> None:
    engine = Engine()
    engine.reply.begin(endless())
    await settled()
    number = engine.reply.id
    engine.window(16000, " a")
    engine.router.deliver(
        [records.WindowStarted(number), records.SpeechText(number, " be"), records.SpeechTurn(number, True, 1.0)]
    )
    engine.router.fail_lost(lambda: EngineFailure("lost"))
    del engine.sent[:]
    engine.router.resume()
    again = engine.sent[0]
    assert isinstance(again, records.Transcribe)
    assert (again.id, again.start, again.state, again.care) == (number, 16000, {"n": 16000}, 1)
    assert engine.audio == AHEAD_BYTES - 16000 * 2
    engine.router.deliver(
        [records.SpeechTurn(number, True, 1.0), records.SpeechText(number, " better"), records.SpeechText(number, " c")]
    )
    engine.window(32000, " better c")
    engine.router.deliver([records.Transcribed(number)])
    found = []
    while (event := await engine.reply.next()) is not None:
        found.append(event if isinstance(event, TurnStarted) else event.text)  # type: ignore[union-attr]
    assert found == [" a", " be", TurnStarted(1.0), "tter", " c", " better c"]


@pytest.mark.parametrize(("timed", "cares"), [(False, [1]), (True, [1, 2])])
async def test_a_window_is_tried_again_with_more_care(timed: bool, cares: list[int]) -> None:
    engine = Engine(segments=timed)
    engine.reply.begin(endless())
    number = engine.reply.id
    for care in cares:
        engine.router.deliver([records.WindowStarted(number)])
        assert engine.reply.lost() is None
        engine.reply.resume()
        assert [one for one in engine.sent if isinstance(one, records.Transcribe)][-1].care == care
    engine.router.deliver([records.WindowStarted(number)])
    assert isinstance(engine.reply.lost(), EngineFailure)
    await engine.reply.aclose()


async def test_a_session_in_which_nobody_speaks_survives_any_number_of_crashes() -> None:
    """They are those of other requests, as long as its own audio is used up; otherwise it may be the cause."""
    engine = Engine()
    engine.reply.begin(endless())
    while engine.audio < AHEAD_BYTES:
        await asyncio.sleep(0)
    for second in range(1, 3 * MAX_RESTARTS):
        engine.router.deliver([records.AudioUsed(engine.reply.id, 16_000 * second)])
        assert engine.reply.lost() is None
        engine.reply.resume()
    ends = [engine.reply.lost() for _ in range(MAX_RESTARTS)]
    assert [end is not None for end in ends] == [False] * (MAX_RESTARTS - 1) + [True]
    await engine.reply.aclose()


async def test_records_that_do_not_fit_are_errors_of_the_frame() -> None:
    engine = Engine()
    with pytest.raises(protocol.FrameError):
        engine.reply.receive(protocol.Pong(engine.reply.id, {}))
    await engine.reply.aclose()
