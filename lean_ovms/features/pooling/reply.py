"""The request of a pooling model as a record, and the records of its results as one list. Knows no process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ...engine.client.replies import Close, Send
from ...engine.protocol import Cancel, FrameError, Record, changed_fields
from ...errors import RequestError
from ...types import Image
from .records import Pool, Pooled
from .types import PooledOutput, PoolingInput, PoolingParams, TextOrTokens, TextWithImages

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

    def __init__(self, number: int, send: Send, close: Close) -> None:
        """Makes the reply of a request that `compute` sends.

        Args:
            number: The id of the request.
            send: Sends a record to the engine.
            close: Ends the request with this id.
        """
        self.id = number
        self._send = send
        self._close = close
        self._outputs: list[PooledOutput | None] = []
        self._missing = 0
        self._done: asyncio.Future[list[PooledOutput]] = asyncio.get_running_loop().create_future()

    async def compute(self, inputs: Sequence[PoolingInput], params: PoolingParams) -> list[PooledOutput]:
        """Returns the result of each input, in their order. There is one input at least.

        Cancelled in the engine when the waiting task is. Raises RequestError.
        """
        self._missing = len(inputs)
        self._outputs = [None] * len(inputs)
        try:
            self._send(pool_record(self.id, inputs, params))
        except RequestError:
            self._close(self.id)
            raise
        try:
            return await self._done
        except asyncio.CancelledError:
            self._close(self.id)
            self._send(Cancel(self.id))
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
            self._close(self.id)
            self._done.set_result([output for output in self._outputs if output is not None])

    def fail(self, error: RequestError) -> None:
        self._close(self.id)
        if not self._done.done():
            self._done.set_exception(error)
