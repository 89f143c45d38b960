"""LLM: its requests to the engine, its results, and how it ends."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import threading
import wave
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lean_ovms import LLM, AsyncLLM, PoolingParams, RequestOutput, SamplingParams
from lean_ovms.config import Config
from lean_ovms.engine import protocol
from lean_ovms.errors import EngineFailure, StartError
from lean_ovms.features.llm.params import FIELDS
from tests.fakes import EOS, Script, encode, say
from tests.features.llm.conftest import MakeLLM, serve, text_model
from tests.features.pooling.fakes import fake_model
from tests.features.speech.scripts import speech_model
from tests.features.voice.fakes import fake_voice

GREEDY = SamplingParams(temperature=0, max_tokens=64)


def echo(prompt: Any, _: Any) -> Script:
    return say(f"<{prompt if isinstance(prompt, str) else bytes(prompt).decode()}>")


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


# --- text


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("a", ["<a>"]),
        (["a", "b"], ["<a>", "<b>"]),
        (encode("a"), ["<a>"]),
        ([encode("a"), "b"], ["<a>", "<b>"]),
        ({"prompt": "a"}, ["<a>"]),
        ([{"prompt_token_ids": encode("a")}, {"prompt": "b"}], ["<a>", "<b>"]),
        ([], []),
    ],
)
def test_prompts_have_vllms_forms(make_llm: MakeLLM, prompts: Any, expected: list[str]) -> None:
    llm = make_llm(partial(text_model, echo))
    found = llm.generate(prompts, [SamplingParams(n=1, seed=n) for n in range(len(expected))] or None)
    assert texts(found) == texts(llm.generate(prompts, GREEDY)) == expected
    assert [(one.prompt_logprobs, one.outputs[0].logprobs) for one in found] == [(None, None)] * len(expected)
    with pytest.raises(ValueError, match="2 inputs, but 1 SamplingParams"):
        llm.generate(["a", "b"], [GREEDY])


def test_an_output_has_vllms_attributes(make_llm: MakeLLM) -> None:
    llm = make_llm(partial(text_model, say("H", "i")))
    params = SamplingParams(temperature=0, max_tokens=9, logprobs=2, prompt_logprobs=1)
    [found] = llm.generate("ab", params)
    assert (found.prompt, found.prompt_token_ids, found.finished, found.request_id) == ("ab", encode("ab"), True, "0")
    assert found.prompt_logprobs is not None
    none, second = found.prompt_logprobs
    assert none is None
    assert second is not None
    assert (second[98].logprob, second[98].rank, second[98].decoded_token) == (-1.0, 2, "b")
    assert (second[65].logprob, second[65].rank) == (-0.25, 1)
    [answer] = found.outputs
    assert (answer.index, answer.text, answer.token_ids) == (0, "Hi", [*encode("Hi"), EOS])
    assert (answer.finish_reason, answer.stop_reason) == ("stop", None)
    assert answer.cumulative_logprob == -1.5
    assert answer.logprobs is not None
    assert answer.logprobs[0] is not None
    assert answer.logprobs[0].keys() == {65, 66, encode("H")[0]}


def test_a_conversation_is_rendered_and_parsed_as_by_the_server(make_llm: MakeLLM) -> None:
    script = say("<think>", "hm", "</think>", "Hi", '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>')
    llm = make_llm(partial(text_model, script), tool_parser="hermes3", reasoning_parser="qwen3")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    turns = [{"role": "user", "content": "a"}]
    alone = llm.chat(turns, GREEDY, tools=[tool])
    both = llm.chat([turns, [{"role": "user", "content": "b"}]], SamplingParams(logprobs=1))
    assert [one.prompt for one in both] == ["user:a;", "user:b;"]
    assert alone[0].prompt.endswith("</tool_response> XML tags.;user:a;")
    answer = alone[0].outputs[0]
    assert (answer.text, answer.reasoning) == ("Hi", "hm")
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("f", '{"x": 1}')]
    assert both[0].outputs[0].logprobs is not None


@pytest.mark.slow
def test_many_prompts_keep_the_engine_full_and_are_never_refused(make_llm: MakeLLM) -> None:
    most = 0

    def script(prompt: str, _: Any) -> Script:
        nonlocal most
        most = max(most, len(llm.engine.mail._replies))  # type: ignore[attr-defined]
        return say("<", prompt, ">")

    llm = make_llm(partial(text_model, script), max_num_seqs=8, max_queued_requests=2)
    prompts = [f"{n}" for n in range(1000)]
    assert texts(llm.generate(prompts, GREEDY)) == [f"<{n}>" for n in range(1000)]
    assert 8 < most <= 8 + 64


def test_a_seed_makes_a_batch_repeatable_and_its_requests_different(make_llm: MakeLLM) -> None:
    seeds = []
    for _ in range(2):
        llm = make_llm(partial(text_model, say("x")), seed=7)
        llm.generate(["a", "a"])
        llm.generate("a", SamplingParams(seed=1))
        seeds.append([sampling.seeds for _, sampling in llm.engine.submitted])  # type: ignore[attr-defined]
    assert seeds == [[(7,), (8,), (1,)]] * 2


# --- errors


def test_errors_are_pythons_and_end_the_batch(make_llm: MakeLLM) -> None:
    llm = make_llm(partial(text_model, lambda prompt, _: say(*["x"] * 100)), max_num_seqs=2)
    with pytest.raises(ValueError, match="input 1: prompt is empty"):
        llm.generate(["a", "", "b"], SamplingParams(max_tokens=10_000))
    assert not llm.engine.mail.busy  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="detokenize is not supported"):
        llm.generate("a", SamplingParams(detokenize=False))
    llm.engine.script = lambda *_: [EngineFailure("the engine stopped")]  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="the engine stopped"):
        llm.generate("a")


def test_wrong_names_are_type_errors_with_a_hint(make_llm: MakeLLM) -> None:
    with pytest.raises(TypeError, match="'temprature'; did you mean temperature"):
        SamplingParams(temprature=1)
    llm = make_llm(partial(text_model, say("x")))
    with pytest.raises(TypeError, match="'tool'; did you mean tools"):
        llm.chat([{"role": "user", "content": "a"}], tool=[])
    for kind in (LLM, AsyncLLM):
        with pytest.raises(StartError, match=r"^[^-]*max_num_seq=1 .*did you mean max_num_seqs"):
            kind(max_num_seq=1)
    with pytest.raises(TypeError, match="give either a Config or options"):
        LLM("m", config=Config())


def test_parameters_are_checked_by_the_fields_of_requests() -> None:
    with pytest.raises(ValueError, match="temperature out of range"):
        SamplingParams(temperature=9)
    params = SamplingParams(temperature=0.5, stop="x")
    params.max_tokens = 3
    assert (params.temperature, params.max_tokens, params.top_p) == (0.5, 3, None)
    assert params == SamplingParams(stop="x", temperature=0.5, max_tokens=3) != SamplingParams()
    assert repr(params) == "SamplingParams(temperature=0.5, stop='x', max_tokens=3)"
    with pytest.raises(AttributeError):
        _ = params.temprature
    assert {"n", "logprobs", "prompt_logprobs", "structured_outputs", "bad_words", "logit_bias"} <= FIELDS.names


# --- life


def test_a_closed_model_says_so(make_llm: MakeLLM) -> None:
    llm = make_llm(partial(text_model, say("x")))
    llm.close()
    llm.close()
    assert llm.engine.state == "ready"  # type: ignore[attr-defined]  # the scripted app stops no engine
    with pytest.raises(RuntimeError, match="the model is closed"):
        llm.generate("a")


def test_a_model_that_does_not_load_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(config: Config) -> Any:
        raise StartError("no weights")

    serve(monkeypatch, fail)
    with pytest.raises(StartError, match="no weights"):
        LLM(fake_engine=True)
    assert "lean_ovms" not in [thread.name for thread in threading.enumerate()]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Lets SIGINT raise KeyboardInterrupt, also if a shell without job control has started the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("wakes", [True, False])
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_cancels_the_requests_and_leaves_the_model_usable(make_llm: MakeLLM, wakes: bool) -> None:
    """A signal that another thread gets does not wake the main one, nor does one that comes just before it sleeps."""
    interrupt = partial(os.kill, os.getpid()) if wakes else signal.raise_signal
    endless: Script = [[(0, "x", None)]] * 100_000

    def script(prompt: str, _: Any) -> Script:
        if prompt != "last":
            return echo(prompt, _)
        threading.Timer(0, interrupt, (signal.SIGINT,)).start()
        return endless

    llm = make_llm(partial(text_model, script))
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "last"], SamplingParams(max_tokens=1_000_000))
    assert not llm.engine.mail.busy  # type: ignore[attr-defined]
    assert llm.engine.cancelled  # type: ignore[attr-defined]
    assert texts(llm.generate("a")) == ["<a>"]


def test_a_progress_bar_counts_inputs_and_tokens(
    make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Any] = []

    class Bar:
        def __init__(self, **options: Any) -> None:
            self.total, self.n, self.text, self.closed = options["total"], 0, "", False
            made.append(self)

        def update(self, n: int) -> None:
            self.n += n

        def set_postfix_str(self, text: str, *, refresh: bool) -> None:
            self.text = text

        def close(self) -> None:
            self.closed = True

    llm = make_llm(partial(text_model, say("x")))
    llm.generate(["a", "b"], use_tqdm=Bar)
    [bar] = made
    assert (bar.total, bar.n, bar.closed) == (2, 2, True)
    assert bar.text.endswith(" tokens/s")
    llm.generate(["a", "b"])  # stderr is no terminal
    assert capsys.readouterr().err == ""
    monkeypatch.setitem(sys.modules, "ipykernel", sys)  # as in a notebook
    llm.generate(["a", "b"])
    assert "2/2" in capsys.readouterr().err


# --- vectors, scores, classes, speech


def pooling(task: str) -> Any:
    async def make(config: Config) -> Any:
        return await fake_model(task)

    return make


def test_embeddings_and_what_the_model_computes_before(make_llm: MakeLLM) -> None:
    llm = make_llm(pooling("embeddings"))
    found = llm.embed(["a", "b", encode("a")])
    vectors = [one.outputs.embedding for one in found]
    assert vectors[0] != vectors[1]
    assert sum(value * value for value in vectors[0]) == pytest.approx(1)
    assert llm.embed("a")[0].outputs.embedding == vectors[0]
    with pytest.raises(ValueError, match="does not support Matryoshka"):
        llm.embed("a", dimensions=3)
    [vector] = llm.embed("ab")
    [found] = llm.encode("ab", PoolingParams(use_activation=True), pooling_task="embed")
    assert found.outputs.data.tolist() == vector.outputs.embedding
    [rows] = llm.encode("ab", pooling_task="token_embed")
    assert rows.outputs.data.shape == (4, len(vector.outputs.embedding))
    params = PoolingParams(task="token_embed"), PoolingParams(task="embed")
    shapes = [one.outputs.data.shape for one in llm.encode(["ab", "ab"], params)]
    assert shapes == [rows.outputs.data.shape, rows.outputs.data.shape[1:]]
    with pytest.raises(ValueError, match="there are 2 inputs, but 1 PoolingParams"):
        llm.encode(["a", "b"], [PoolingParams()])
    with pytest.raises(ValueError, match="Unsupported task: 'classify'"):
        llm.encode("ab", pooling_task="classify")
    with pytest.raises(TypeError, match="has no argument 'dimension'; did you mean dimensions"):
        llm.embed("a", pooling_params=PoolingParams(dimension=3))


def test_scores(make_llm: MakeLLM) -> None:
    llm = make_llm(pooling("rerank"))
    documents = [f"document {n}" for n in range(70)]
    one_by_one = [llm.score("query", document)[0].outputs.score for document in documents]
    assert [found.outputs.score for found in llm.score("query", documents)] == one_by_one
    pairs = llm.score(["query"] * 70, documents)
    assert [found.outputs.score for found in pairs] == one_by_one
    with pytest.raises(ValueError, match="there are 2 first texts and 3"):
        llm.score(["a", "b"], ["a", "b", "c"])


def test_classes(make_llm: MakeLLM) -> None:
    found = make_llm(pooling("classify")).classify(["a", "bc"])
    assert [sum(one.outputs.probs) for one in found] == pytest.approx([1, 1])
    assert all(isinstance(one.outputs.label, str) for one in found)


@pytest.mark.slow
def test_speech(make_llm: MakeLLM, tmp_path: Path) -> None:
    async def voice(config: Config) -> Any:
        return await fake_voice()

    async def recognizer(config: Config) -> Any:
        return await speech_model()

    [spoken] = make_llm(voice).speak("Hello", voice="loud")
    with wave.open(io.BytesIO(spoken.audio)) as file:
        assert file.getframerate() == spoken.sample_rate
    path = tmp_path / "a.wav"
    path.write_bytes(spoken.audio)
    llm = make_llm(recognizer)
    from_path, from_bytes = llm.transcribe([path, spoken.audio], language="en")
    assert from_path.text == from_bytes.text != ""
    assert from_path.seconds == pytest.approx(len(array("h", spoken.audio[44:])) / spoken.sample_rate, abs=0.1)
    llm.transcribe(path, timestamp_granularities=["word"])
    times = [(params.segments, params.words) for params, _ in llm.engine.asked]  # type: ignore[attr-defined]
    assert times == [(False, False), (False, False), (False, True)]
    with pytest.raises(ValueError, match="Unsupported language"):
        llm.transcribe(path, language="xx")


# --- in an event loop


@pytest.fixture
async def async_llm(monkeypatch: pytest.MonkeyPatch) -> Any:
    engines = serve(monkeypatch, partial(text_model, lambda prompt, _: say("a", "b", "c")))
    async with AsyncLLM(fake_engine=True) as llm:
        llm.engine = engines[0]  # type: ignore[attr-defined]
        yield llm


async def test_a_stream_is_all_of_the_text_so_far(async_llm: Any) -> None:
    found = [output async for output in async_llm.generate("x", GREEDY)]
    assert [output.outputs[0].text for output in found] == ["a", "ab", "abc"]
    assert [output.finished for output in found] == [False, False, True]
    assert [output.outputs[0].finish_reason for output in found] == [None, None, "stop"]
    chat = [output async for output in async_llm.chat([{"role": "user", "content": "x"}], GREEDY)]
    assert chat[-1].outputs[0].text == "abc"
    scored = [output.prompt_logprobs async for output in async_llm.generate("xy", SamplingParams(prompt_logprobs=1))]
    assert len(scored) == 3
    assert scored[0] == scored[1] == scored[2]
    assert (scored[0][0], scored[0][1].keys()) == (None, {65, *encode("y")})


async def test_a_choice_may_be_ahead_of_the_scores_of_its_prompt(async_llm: Any) -> None:
    """The first choice computes the whole prompt to get them; other choices may find it in the prefix cache."""
    engine, scores = async_llm.engine, list[Any]()
    engine.script = lambda *_: [[(1, "x", None)], [(0, "y", "length"), (1, "y", "length")]]
    deliver = engine.mail.deliver

    def late(records: list[protocol.Record]) -> None:
        scores.extend(record for record in records if isinstance(record, protocol.PromptLogprobs))
        first = any(isinstance(record, protocol.Tokens) and record.index == 0 for record in records)
        deliver([*(scores if first else ()), *[record for record in records if record not in scores]])

    engine.mail.deliver = late
    params = SamplingParams(n=2, prompt_logprobs=1)
    found = [output.prompt_logprobs async for output in async_llm.generate("xy", params)]
    assert found[0] is None
    assert found[-1][1][121].logprob == -1.0


async def test_leaving_a_stream_cancels_its_request(async_llm: Any) -> None:
    stream = async_llm.generate("x", GREEDY)
    await anext(stream)
    await stream.aclose()
    assert async_llm.engine.cancelled
    assert not async_llm.engine.mail.busy
    with pytest.raises(ValueError, match="prompt is empty"):
        await anext(async_llm.generate(""))


@pytest.mark.slow
async def test_any_number_of_calls_may_run_at_once(async_llm: Any) -> None:
    async def last(prompt: str) -> str:
        return [output.outputs[0].text async for output in async_llm.generate(prompt, GREEDY)][-1]

    assert await asyncio.gather(*(last(str(n)) for n in range(300))) == ["abc"] * 300
