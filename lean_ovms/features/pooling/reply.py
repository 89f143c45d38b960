"""Makes the record of a request to a pooling model, and collects the records of its results as one list."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.protocol import FrameError, changed_fields
from ...types import Image
from .records import Pool, PooledPart
from .types import PooledOutput, PoolingInput, PoolingParams, TextOrTokens, TextWithImages

FLOAT_BYTES = 4
_changed = changed_fields(PoolingParams)


def pool_record(number: int, inputs: Sequence[PoolingInput], params: PoolingParams) -> Pool:
    """Makes the record of a request. Inputs are all single or all pairs; a query that all pairs share is sent once."""
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


class PooledOutputs:
    """Collects the results of one request's inputs."""

    def __init__(self, count: int) -> None:
        self._outputs: list[PooledOutput | None] = [None] * count

    def add(self, record: PooledPart) -> None:
        """Adds the results of some inputs. Raises FrameError if the record does not fit the request."""
        at, row_bytes = 0, record.width * FLOAT_BYTES
        for index, tokens, rows in zip(record.indices, record.tokens, record.rows, strict=True):
            end = at + rows * row_bytes
            if not 0 <= index < len(self._outputs) or self._outputs[index] is not None or end > len(record.data):
                raise FrameError("results that do not fit their request")
            self._outputs[index] = PooledOutput(record.data[at:end], rows, record.width, tokens)
            at = end

    def all(self) -> list[PooledOutput]:
        """Returns the result of each input, in the order of the inputs. Raises FrameError if one is missing."""
        found = [output for output in self._outputs if output is not None]
        if len(found) < len(self._outputs):
            raise FrameError("a request without all its results")
        return found
