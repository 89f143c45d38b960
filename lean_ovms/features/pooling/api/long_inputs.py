"""Inputs of embeddings that are longer than the window, with --embed_long_inputs mean: vLLM's chunked processing.

An input is cut into pieces that fill the window, each with the special tokens of a text; its vector is the mean of
theirs, weighted by their tokens, and normalized again.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..types import PooledOutput, PoolingInfo, PoolingInput, PoolingParams
from .chunks import Tokens, tokens_of
from .request import PoolingRequest


async def encode_in_pieces(
    call: PoolingRequest, inputs: Sequence[PoolingInput], params: PoolingParams, info: PoolingInfo
) -> list[PooledOutput]:
    """Returns one result for each input; a long one is computed in pieces where the model's options say so."""
    if params.truncate is not None or call.model.options.embed_long_inputs != "mean":
        return await call.encode(inputs, params)
    long = await _long(call, inputs, params, info)
    if not long:
        return await call.encode(inputs, params)
    parts: list[PoolingInput] = []
    counts = []
    for number, one in enumerate(inputs):
        pieces = long.get(number, [one])
        parts += pieces
        counts.append(len(pieces))
    outputs = iter(await call.encode(parts, params))
    await call.load_numpy()
    normalize = info.normalize if params.normalize is None else params.normalize
    return [_joined([next(outputs) for _ in range(count)], normalize=normalize) for count in counts]


def _joined(outputs: list[PooledOutput], *, normalize: bool) -> PooledOutput:
    from ...pooling import vectors

    if len(outputs) == 1:
        return outputs[0]
    tokens = [output.tokens for output in outputs]
    data = vectors.mean([output.data for output in outputs], tokens, normalize=normalize)
    return PooledOutput(data, 1, outputs[0].width, sum(tokens))


async def _long(
    call: PoolingRequest, inputs: Sequence[PoolingInput], params: PoolingParams, info: PoolingInfo
) -> dict[int, list[PoolingInput]]:
    """Returns the pieces of every input that does not fit the window, by its number. Raises RequestError."""
    space = info.window - (info.special_single if params.add_special_tokens else 0)
    found: dict[int, list[PoolingInput]] = {}
    for number, one in enumerate(inputs):
        if isinstance(one, list) and len(one) > info.window:
            found[number] = [*_pieces(one, info.window)]
    suspects = {i: one for i, one in enumerate(inputs) if isinstance(one, str) and len(one.encode()) > space}
    texts = dict(zip(suspects, await tokens_of(call, list(suspects.values()), "input"), strict=True))
    long = {number: tokens for number, tokens in texts.items() if len(tokens) > space}
    before, after = await _around(call) if long and params.add_special_tokens else ([], [])
    for number, tokens in long.items():
        found[number] = [[*before, *piece, *after] for piece in _pieces(tokens, space)]
    return found


def _pieces(tokens: Tokens, size: int) -> list[Tokens]:
    return [tokens[start : start + size] for start in range(0, len(tokens), size)]


async def _around(call: PoolingRequest) -> tuple[Tokens, Tokens]:
    """Returns the special tokens before and after a text."""
    [plain] = await call.model.encode(["a"], False)
    [whole] = await call.model.encode(["a"], True)
    at = next(i for i in range(len(whole)) if whole[i : i + len(plain)] == plain)
    return whole[:at], whole[at + len(plain) :]
