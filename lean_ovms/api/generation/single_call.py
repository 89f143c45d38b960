"""parallel_tool_calls false: a generation that ends where its second call would begin."""

from __future__ import annotations

from ...models.generation import Generation
from ...timing_types import Timings
from ...types import Delta, ToolCallStart, Usage


class SingleCallStream:
    """Deltas with at most one call for each choice; the generation is closed when every choice has ended."""

    def __init__(self, generation: Generation, choices: int) -> None:
        self._generation = generation
        self._running = set(range(choices))

    @property
    def usage(self) -> Usage:
        return self._generation.usage

    @property
    def timings(self) -> Timings:
        return self._generation.timings

    def __aiter__(self) -> SingleCallStream:
        return self

    async def __anext__(self) -> list[Delta]:
        while self._running:
            found = await self._generation.__anext__()
            deltas = [self._cut(delta) for delta in found if delta.index in self._running]
            self._running -= {delta.index for delta in deltas if delta.finish is not None}
            if deltas or not found:
                return deltas
        self._generation.finish_early()
        await self._generation.aclose()
        raise StopAsyncIteration

    def wake(self) -> None:
        self._generation.wake()

    @staticmethod
    def _cut(delta: Delta) -> Delta:
        for place, event in enumerate(delta.events):
            if isinstance(event, ToolCallStart) and event.index > 0:
                return Delta(delta.index, events=delta.events[:place], tokens=delta.tokens, finish="stop")
        return delta

    async def aclose(self) -> None:
        await self._generation.aclose()
