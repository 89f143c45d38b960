"""A text-to-speech model in the front end: pieces, time limits, cancellation, a child that dies. Its engine is a
fake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import numpy as np
import pytest
import pytest_asyncio

from lean_ovms.config import Config
from lean_ovms.errors import BadRequest, EngineFailure, RequestTimeout, TooManyRequests
from lean_ovms.features.voice.model import SHORT, VoiceModel
from lean_ovms.models.model import make_model
from lean_ovms.observability.records import RequestRecord, current_record
from lean_ovms.types.audio import SpeakParams
from tests.features.voice.fakes import fake_voice

PLAIN = SpeakParams()
TEXT = "The first sentence is here. The second one is there! And a third one."


async def spoken(model: VoiceModel, text: str, params: SpeakParams = PLAIN) -> list[bytes]:
    return [block async for block in model.speak(text, params)]


async def test_a_block_for_each_sentence() -> None:
    model, engine = await fake_voice()
    blocks = await spoken(model, TEXT, SpeakParams(voice="loud"))
    assert [text for text, _, _ in engine.asked] == [
        "The first sentence is here.", "The second one is there!", "And a third one."
    ]  # fmt: skip
    assert [begun for _, _, begun in engine.asked] == [False, True, True]
    assert {params.voice for _, params, _ in engine.asked} == {"loud"}
    assert [len(block) for block in blocks] == [len(text) * 320 for text, _, _ in engine.asked]


async def test_a_text_that_is_being_written_is_spoken_as_its_sentences_end() -> None:
    model, engine = await fake_voice()
    more = asyncio.Event()

    async def written() -> AsyncGenerator[str, None]:
        for piece in ("The first sen", "tence is here.", " The second"):
            yield piece
        await more.wait()
        yield " one is there"

    stream = model.speak(written(), PLAIN)
    assert len(await anext(stream)) == len("The first sentence is here.") * 320
    assert len(engine.asked) == 1
    more.set()
    assert len([block async for block in stream]) == 1
    assert [text for text, _, _ in engine.asked] == ["The first sentence is here.", "The second one is there"]


async def test_a_sentence_without_an_end_is_cut() -> None:
    model, engine = await fake_voice()
    most = model.info.context_length

    async def written() -> AsyncGenerator[str, None]:
        for _ in range(most):
            yield "word "
        yield "x" * (most + 1)

    assert [block async for block in model.speak(written(), PLAIN)]
    spoken = [text for text, _, _ in engine.asked]
    assert max(map(len, spoken)) <= most
    assert " ".join(spoken[:-2]).split() == ["word"] * most


async def test_a_stream_that_is_closed_cancels_what_is_being_spoken() -> None:
    model, engine = await fake_voice()
    engine.gate = asyncio.Event()
    stream = model.speak(TEXT, PLAIN)
    await anext(stream)
    await asyncio.sleep(0)
    assert len(engine.asked) == 2  # one sentence is spoken ahead, and no more
    await stream.aclose()
    assert engine.cancelled == ["The second one is there!"]
    await asyncio.wait_for(model.in_flight.drained(), 300)


@pytest.mark.slow
async def test_a_request_has_a_time_limit() -> None:
    model, engine = await fake_voice(request_timeout_s=0.5)
    engine.gate = asyncio.Event()
    stream = model.speak(TEXT, PLAIN)
    await anext(stream)
    with pytest.raises(RequestTimeout):
        await anext(stream)
    assert engine.cancelled == ["The second one is there!"]


async def test_a_request_is_recorded() -> None:
    model, engine = await fake_voice()
    record = RequestRecord("id", "POST", "/", "", 0.0)
    token = current_record.set(record)
    stream = model.speak(TEXT, PLAIN)
    await anext(stream)
    current_record.reset(token)
    assert len([block async for block in stream]) == 2
    [done] = record.generations
    assert (done.prompt_tokens, done.finish_reasons, done.error) == (len(TEXT), ("stop",), "")
    assert done.ttft_s is not None
    engine.refusal = TooManyRequests("full")
    token = current_record.set(record)
    with pytest.raises(TooManyRequests):
        await spoken(model, TEXT)
    current_record.reset(token)
    assert (record.generations[1].finish_reasons, record.generations[1].error) == (("error",), "queue_full")


async def test_a_text_of_which_the_model_makes_no_sound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, engine = await fake_voice()
    sound = np.zeros(8, np.float32)
    monkeypatch.setattr(engine.synthesizer, "_speak", lambda text, _: sound[: 8 if "a" in text else 0])
    with pytest.raises(
        BadRequest, match="input contains nothing that this model can speak; language must be one of: en-us, de"
    ):
        await spoken(model, "\N{GRINNING FACE}")
    assert len(await spoken(model, "\N{GRINNING FACE} " * SHORT + "\nand words")) == 1

    async def written() -> AsyncGenerator[str, None]:
        yield "\N{GRINNING FACE}"

    assert [block async for block in model.speak(written(), PLAIN)] == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def in_child() -> AsyncIterator[VoiceModel]:
    made = make_model(Config(fake_engine=True, task="text2speech", model_name="v"))
    assert isinstance(made, VoiceModel)
    await made.load()
    yield made
    await made.stop()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.slow
async def test_the_child_speaks_and_fails_one_text_only(in_child: VoiceModel) -> None:
    assert in_child.summary == "text to speech, 2 voices, 16000 Hz"
    assert len((await spoken(in_child, "abc"))[0]) == 960
    results = await asyncio.gather(
        spoken(in_child, "<|raise|>"), spoken(in_child, TEXT), spoken(in_child, "abcd"), return_exceptions=True
    )
    assert isinstance(results[0], EngineFailure)
    assert [len(blocks) for blocks in results[1:]] == [3, 1]  # type: ignore[arg-type]
    assert (await in_child.stats()).recoveries == 1
