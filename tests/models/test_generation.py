"""A running request: what choices make of tokens, however these are cut; one outcome for each choice."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.models.generation import CompletedChoice, Generation, collect
from lean_ovms.models.text_model import TextModel
from lean_ovms.types import OutputParams, Reasoning, SamplingParams, TextPrompt
from tests.fakes import EOS, FakeEngine, say
from tests.streams import pieces

TEXT = "Grüße: STOPP, 世界 STOP und weiter 🙂"


async def start(script: Any, sampling: SamplingParams | None = None, **output: Any) -> tuple[Generation, FakeEngine]:
    config = Config(fake_engine=True)
    engine = FakeEngine(script)
    model = TextModel(config, engine)  # type: ignore[arg-type]
    await model.load()
    sampling = sampling or SamplingParams()
    return await model.start(TextPrompt("x"), sampling, OutputParams(**output)), engine


async def answer(script: Any, **output: Any) -> CompletedChoice:
    generation, engine = await start(script, **output)
    try:
        [found] = await collect(generation, 1)
    finally:
        await generation.aclose()
    assert not engine.mail.busy
    return found


def in_bytes(text: str, size: int) -> Any:
    """Returns the text in steps of a number of bytes, which may split characters."""

    def script(prompt: object, sampling: SamplingParams) -> Any:
        data = text.encode()
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        return [[(0, p.decode("latin-1"), None)] for p in pieces] + [[(0, "", "stop")]]

    return script


@pytest.mark.parametrize("size", [1, 2, 3, 5, 11])
async def test_any_cut_of_the_tokens_gives_the_same_answer(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fakes.encode", lambda text: list(text.encode("latin-1")))
    whole = await answer(in_bytes(TEXT, size))
    assert whole.text == TEXT
    cut = await answer(in_bytes(TEXT, size), stop=("STOP ", "never"))
    assert (cut.text, cut.finish, cut.stop) == (TEXT[: TEXT.index("STOP ")], "stop", "STOP ")
    kept = await answer(in_bytes(TEXT, size), stop=("STOP ",), include_stop=True)
    assert kept.text == TEXT[: TEXT.index("STOP ") + 5]


@pytest.mark.parametrize("size", [1, 4, 100])
async def test_a_call_cut_off_by_length_is_shown_once(size: int) -> None:
    text = '<tool_call>\n{"name": "get'
    engine = FakeEngine([[(0, text[i : i + size], None)] for i in range(0, len(text), size)] + [[(0, "_", "length")]])
    model = TextModel(Config(fake_engine=True, tool_parser="hermes3"), engine)  # type: ignore[arg-type]
    await model.load()
    tools = ({"type": "function", "function": {"name": "get_x", "parameters": {}}},)
    [found] = await collect(
        await model.start(TextPrompt("x"), SamplingParams(), OutputParams(parse=True, tools=tools)), 1
    )
    assert (found.text, found.calls, found.finish) == (text + "_", [], "length")


@pytest.mark.parametrize("size", [1, 5, 100])
@pytest.mark.parametrize("text", ["<|channel>thought\nhm", '<|tool_call>call:f{a:<|"|>b', "all said"])
async def test_the_end_of_a_text_is_hidden_wherever_a_model_stops(text: str, size: int) -> None:
    engine = FakeEngine(say(*(text[i : i + size] for i in range(0, len(text), size))))
    model = TextModel(Config(fake_engine=True, tool_parser="gemma4", reasoning_parser="gemma4"), engine)  # type: ignore[arg-type]
    await model.load()
    tools = ({"type": "function", "function": {"name": "f", "parameters": {}}},)
    [found] = await collect(
        await model.start(TextPrompt("x"), SamplingParams(), OutputParams(parse=True, tools=tools)), 1
    )
    assert "<eos>" not in found.text + found.reasoning + "".join(call.arguments for call in found.calls)
    assert found.tokens[-1] == EOS


async def test_special_tokens_that_are_tags_are_read_and_others_are_hidden() -> None:
    engine = FakeEngine(say("<think>", "h~m", "</think>", "so~"))
    engine.vocabulary = dataclasses.replace(engine.vocabulary, special=frozenset([EOS, *b"</>~"]))
    model = TextModel(Config(fake_engine=True, reasoning_parser="qwen3"), engine)  # type: ignore[arg-type]
    await model.load()
    for skip, reasoning, text in ((True, "hm", "so"), (False, "", "<think>h~m</think>so~<eos>")):
        output = OutputParams(parse=skip, skip_special_tokens=skip)
        [found] = await collect(await model.start(TextPrompt("x"), SamplingParams(), output), 1)
        assert (found.reasoning, found.text) == (reasoning, text)


async def test_stop_strings_wait_for_min_tokens() -> None:
    assert (await answer(say("a.", "b.", "c."), stop=(".",), min_tokens=3)).text == "a.b"


async def test_a_stop_string_in_one_choice_leaves_the_other_alone() -> None:
    script = [[(0, "a.", None), (1, "x", None)], [(0, "never", None), (1, "y.z", None)], [(1, "never", None)]]
    generation, engine = await start(script, SamplingParams(n=2, seeds=(1, 2)), stop=(".",))
    first, second = await collect(generation, 2)
    assert (first.text, second.text) == ("a", "xy")
    assert [c.index for c in engine.cancelled] == [0, 1]
    assert not engine.mail.busy


async def test_a_vocabulary_that_is_not_exact_is_decoded_by_the_engine() -> None:
    config = Config(fake_engine=True)
    engine = FakeEngine(say("Grüße ", "世界", " 🙂"))
    engine.vocabulary = dataclasses.replace(engine.vocabulary, exact=False)
    model = TextModel(config, engine)  # type: ignore[arg-type]
    await model.load()
    generation = await model.start(TextPrompt("x"), SamplingParams(), OutputParams())
    [found] = await collect(generation, 1)
    assert found.text == "Grüße 世界 🙂"


async def test_stop_token_ids_are_named_as_the_reason() -> None:
    generation, _ = await start(say("ab"), SamplingParams(stop_token_ids=(EOS,)))
    [found] = await collect(generation, 1)
    assert found.stop == EOS
    assert (await answer(say("ab"))).stop is None


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
async def test_stops_and_counts_do_not_depend_on_how_tokens_came(size: int) -> None:
    text = "a.b.c.d.e.f"
    script = [[(0, text[i : i + size], None)] for i in range(0, len(text), size)]
    generation, _ = await start(script, stop=(".",), min_tokens=4)
    [found] = await collect(generation, 1)
    assert (found.text, len(found.tokens), generation.usage.completion_tokens) == ("a.b.c", 6, 6)


@pytest.mark.parametrize("size", [1, 2, 5, 100])
async def test_reasoning_is_counted_within_the_completion(size: int) -> None:
    config = Config(fake_engine=True, reasoning_parser="qwen3")
    text = "<think>hm</think>yes"
    engine = FakeEngine(say(*(text[i : i + size] for i in range(0, len(text), size))))
    model = TextModel(config, engine)  # type: ignore[arg-type]
    await model.load()
    generation = await model.start(TextPrompt("x"), SamplingParams(), OutputParams(parse=True))
    seen = [e async for deltas in pieces(generation) for d in deltas for e in d.events]
    assert "".join(e.text for e in seen if isinstance(e, Reasoning)) == "hm"
    assert generation.usage.reasoning_tokens == len("hm</think>")
    assert generation.usage.completion_tokens == len("<think>hm</think>yes") + 1


async def test_closing_twice_or_before_reading_cancels_once() -> None:
    generation, engine = await start([[(0, "x", None)]] * 9)
    await generation.aclose()
    await generation.aclose()
    assert len(engine.cancelled) == 1


@pytest.mark.parametrize("size", [1, 3, 50])
async def test_looking_for_nothing_and_for_what_never_comes_give_the_same(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens that nothing inspects take a shorter path; text, ids, counts and end are the same."""
    monkeypatch.setattr("tests.fakes.encode", lambda text: list(text.encode("latin-1")))

    assert await answer(in_bytes(TEXT, size)) == await answer(in_bytes(TEXT, size), stop=("never",))
