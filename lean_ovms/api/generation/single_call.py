"""parallel_tool_calls false: a generation that ends where its second call would begin."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...models.generation import Generation, WrappedStream
from ...types import Delta, ToolCallStart
from ...types.push import Sink


class SingleCallStream(WrappedStream):
    """Deltas with at most one call for each choice; the generation ends when every choice has ended."""

    def __init__(self, generation: Generation, choices: int) -> None:
        super().__init__(generation)
        self._running = set(range(choices))

    async def push_to(self, sink: Sink[list[Delta]]) -> None:
        await self._stream.push_to(Sink(partial(self._push, sink.push), sink.paused))

    def _push(self, push: Callable[[list[Delta]], object], deltas: list[Delta]) -> None:
        deltas = [self._cut(delta) for delta in deltas if delta.index in self._running]
        self._running -= {delta.index for delta in deltas if delta.finish is not None}
        push(deltas)
        if not self._running:
            self.finish("stop")

    @staticmethod
    def _cut(delta: Delta) -> Delta:
        for place, event in enumerate(delta.events):
            if isinstance(event, ToolCallStart) and event.index > 0:
                return Delta(delta.index, events=delta.events[:place], tokens=delta.tokens, finish="stop")
        return delta
