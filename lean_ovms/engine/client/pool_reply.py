"""The request of a pooling model as a record, and the records of its results as one list. Knows no process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ...errors import RequestError
from ...pooling_types import PooledOutput, PoolingInput, PoolingParams, TextOrTokens, TextWithImages
from ...types import Image
from ...util.changed_fields import changed_fields
from ..protocol import Cancel, FrameError, Pool, Pooled, Record
from .replies import ReplyRouter

FLOAT_BYTES = 4
_changed = changed_fields(PoolingParams)


def pool_record(number: int, inputs: Sequence[PoolingInput], params: PoolingParams) -> Pool:
    """Returns the record of a request. Inputs are all single or all pairs; a query of all pairs is sent once."""
    queries: list[TextOrTokens] = []
    single: list[TextOrTokens] = []
    images: list[tuple[int, Image]] = []
    for at, one in enumerate(inputs):
        if isinstance(one, tuple):
            queries.append(one[0])
            single.append(one[1])
        elif isinstance(one, TextWithImages):
            images += [(at, image) for image in one.images]
            single.append(one.text)
        else:
            single.append(one)
    assert not queries or len(queries) == len(single), "inputs are all single or all pairs"
    if queries and all(query is queries[0] or query == queries[0] for query in queries):
        del queries[1:]
    return Pool(
        number,
        single,
        queries,
        _changed(params),
        [[at, image.height, image.width] for at, image in images],
        [image.param for _, image in images],
        [image.pixels for _, image in images],
    )


class PoolReply:
    """Collects the results of one request."""

    def __init__(self, router: ReplyRouter, number: int, count: int) -> None:
        """Waits for the results of `count` inputs."""
        self.id = number
        self._router = router
        self._outputs: list[PooledOutput | None] = [None] * count
        self._missing = count
        self._done: asyncio.Future[list[PooledOutput]] = asyncio.get_running_loop().create_future()

    async def result(self) -> list[PooledOutput]:
        """Returns one result per input, in their order. Cancels in the engine when the waiting task is cancelled."""
        try:
            return await self._done
        except asyncio.CancelledError:
            self._router.close(self.id)
            self._router.send(Cancel(self.id))
            raise

    def receive(self, record: Record) -> None:
        """Takes the results of some inputs. Raises FrameError for a record that does not fit the request."""
        if self._done.done():
            return
        if not isinstance(record, Pooled):
            raise FrameError(f"{record.kind} is no answer to a pooling request")
        at, row_bytes = 0, record.width * FLOAT_BYTES
        for index, tokens, rows in zip(record.indices, record.tokens, record.rows, strict=True):
            end = at + rows * row_bytes
            if not 0 <= index < len(self._outputs) or self._outputs[index] is not None or end > len(record.data):
                raise FrameError("results that do not fit their request")
            self._outputs[index] = PooledOutput(record.data[at:end], rows, record.width, tokens)
            at = end
            self._missing -= 1
        if not self._missing:
            self._router.close(self.id)
            self._done.set_result([output for output in self._outputs if output is not None])

    def fail(self, error: RequestError) -> None:
        self._router.close(self.id)
        if not self._done.done():
            self._done.set_exception(error)
