"""Several prompts in one request: few wait for the engine, the event loop runs in between, and all start or none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from lean_ovms.errors import BadRequest, Unavailable
from lean_ovms.features.completions.several import STARTING, STARTING_SIZE, GenerationGroup, joined, start_all
from lean_ovms.models.generation import Generation, collect
from lean_ovms.types import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from tests.fakes import say
from tests.models.test_generation import start as started
from tests.streams import pieces
from tests.waiting import cancel


class FakeGeneration:
    """The parts of a Generation that these tests need."""

    def __init__(self, tokens: int, opened: set[FakeGeneration]) -> None:
        self.prompt_tokens = tokens
        self._opened = opened
        opened.add(self)

    async def aclose(self) -> None:
        self._opened.discard(self)


class FakeEngine:
    """An engine that accepts a prompt when told to. It counts waiting prompts and their tokens, and the most that ever
    waited."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        self.opened: set[FakeGeneration] = set()
        self.most = self.most_size = self.size = self.begun = 0
        self._at_once = at_once

    async def start(self, prompt: Any) -> Any:
        size = len(prompt.text) if isinstance(prompt, TextPrompt) else len(prompt.tokens)
        self.begun += 1
        if not self._at_once:
            accepted = asyncio.get_running_loop().create_future()
            self.waiting.append(accepted)
            self.size += size
            self.most, self.most_size = max(self.most, len(self.waiting)), max(self.most_size, self.size)
            try:
                await accepted
            finally:
                self.size -= size
                if accepted in self.waiting:
                    self.waiting.remove(accepted)
        return FakeGeneration(size, self.opened)

    async def accept_all(self, starting: asyncio.Task[Any]) -> None:
        """Accepts one prompt after the other, whenever no further one arrives, until all have started."""
        while not starting.done():
            begun = self.begun
            for _ in range(5):
                await asyncio.sleep(0)
            if self.begun == begun and self.waiting:
                self.waiting.pop(0).set_result(None)


@pytest.fixture(autouse=True)
def generations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lean_ovms.features.completions.several.Generation", FakeGeneration)


@pytest.mark.parametrize(("size", "most"), [(1, STARTING), (STARTING_SIZE // 4, 4), (2 * STARTING_SIZE, 1)])
async def test_few_prompts_wait_for_the_engine_and_large_ones_fewer(size: int, most: int) -> None:
    engine, made = FakeEngine(), 0

    def prompts() -> Iterator[Prompt]:
        nonlocal made
        for _ in range(100):
            made += 1
            assert made <= engine.begun + 2  # the first two are created together, to see whether there is a second
            yield TextPrompt("x" * size)

    starting = asyncio.ensure_future(start_all(prompts(), engine.start, 1 << 40))
    await engine.accept_all(starting)
    assert len(await starting) == 100
    assert engine.most == most
    assert engine.most_size == most * size


async def test_each_prompt_starts_in_a_turn_of_its_own() -> None:
    turns, starts = 0, list[int]()
    engine = FakeEngine(at_once=True)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def start(prompt: TokenPrompt) -> Any:
        starts.append(turns)
        return await engine.start(prompt)

    counting = asyncio.ensure_future(count())
    generations = await start_all([TokenPrompt([1])] * 20, start, 100)
    counting.cancel()
    assert len(generations) == len(set(starts)) == 20


async def test_more_tokens_than_allowed_together_close_what_was_started() -> None:
    engine = FakeEngine(at_once=True)
    with pytest.raises(BadRequest, match="more than 25 tokens together"):
        await start_all([TokenPrompt([1] * 10)] * 1000, engine.start, 25)
    assert not engine.opened
    assert engine.begun < 10
    assert len(await start_all([TokenPrompt([1] * 10)] * 2, engine.start, 25)) == 2
    assert len(await start_all([TokenPrompt([1] * 100)], engine.start, 25)) == 1  # a single prompt has no limit


@pytest.mark.parametrize("wrong", [0, 1, 50, 99])
async def test_one_that_is_refused_ends_all(wrong: int) -> None:
    engine = FakeEngine(at_once=True)

    async def start(prompt: TokenPrompt) -> Any:
        if prompt.tokens == [wrong]:
            raise Unavailable("no")
        return await engine.start(prompt)

    with pytest.raises(Unavailable):
        await start_all([TokenPrompt([number]) for number in range(100)], start, 1000)
    assert not engine.opened


async def test_a_client_that_leaves_leaves_nothing() -> None:
    engine = FakeEngine()
    starting = asyncio.ensure_future(start_all([TokenPrompt([1])] * 100, engine.start, 1000))
    while len(engine.waiting) < STARTING:
        await asyncio.sleep(0)
    engine.waiting.pop(0).set_result(None)
    await asyncio.sleep(0)
    await cancel(starting)
    assert not engine.opened
    assert not engine.waiting


def test_another_conversation_of_a_request_counts_as_if_it_were_built_alone() -> None:
    shared: dict[str, Any] = {"tools": [{"name": "f" * 50}], "template_kwargs": {"a": "b"}}
    first = ChatPrompt(messages=[{"role": "user", "content": "abc"}], **shared)
    messages = [{"role": "assistant", "content": [{"type": "text", "text": "de"}], "tool_calls": [{"a": "xyz"}]}]
    assert first.with_messages(messages) == ChatPrompt(messages=messages, **shared)


async def test_a_batch_ends_when_all_have_ended_and_closes_all() -> None:
    generations = []
    for script in (say("a"), say("b", "c"), [[(0, "x", None)]] * 99):
        generation, _ = await started(script)
        generations.append(generation)
    batch = GenerationGroup(generations, 1)
    seen: dict[int, str] = {}
    async for deltas in pieces(batch):
        for delta in deltas:
            seen[delta.index] = seen.get(delta.index, "") + "".join(e.text for e in delta.events)  # type: ignore[union-attr]
        if len(seen.get(2, "")) >= 3:
            break
    assert (seen[0], seen[1]) == ("a", "bc")
    await batch.aclose()
    await asyncio.sleep(0)
    assert all(g._reply.finished for g in generations)
    assert batch.usage.prompt_tokens == 3


async def test_one_generation_needs_no_group_and_no_task() -> None:
    tasks = asyncio.all_tasks()

    async def begun(prompt: TextPrompt) -> Generation:
        assert asyncio.all_tasks() == tasks
        return await _started(prompt)

    generations = await start_all([TextPrompt("ab")], begun, 10)
    assert joined(generations, 1) is generations[0]
    assert (await collect(joined(generations, 1), 1))[0].text == "ab"
    await generations[0].aclose()


async def _started(prompt: TextPrompt) -> Generation:
    """Returns a generation that answers with its prompt."""
    return (await started(say(prompt.text)))[0]
