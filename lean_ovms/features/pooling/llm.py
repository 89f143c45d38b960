"""Vectors, scores and classes as methods of LLM and AsyncLLM.

In each function, `llm` is the LLM, which reads the fields and has the model, and `fields` are further fields of the
endpoint. The functions raise RequestError if the request is not valid or the model fails, and TypeError for a field
that the endpoint does not have.
"""

from __future__ import annotations

from typing import Any

from ...api.caller import Caller
from ...types import Json
from .api import classify as classes
from .api import embeddings, pooling, scoring
from .api import score as scores
from .api.request import classified
from .types import TextOrTokens


async def embed(llm: Caller, text: TextOrTokens, fields: Json) -> list[float]:
    """Returns the vector of a text."""
    call, inputs, _ = await llm.read(embeddings.parse_embeddings, embeddings.FIELDS, {"input": text}, fields)
    [found] = await embeddings.embed(call, inputs)
    return found.values


async def encode(llm: Caller, text: TextOrTokens, fields: Json) -> Any:
    """Returns the model's output for a text as an array; if the model has an output for each token, a row for each."""
    call, inputs = await llm.read(pooling.parse, pooling.FIELDS, {"input": text}, fields)
    [found], per_token = await pooling.compute(call, inputs)
    await call.load_numpy()
    from . import vectors

    return vectors.array(found.data, (found.rows, found.width) if per_token else (-1,))


async def score(llm: Caller, data: tuple[str | list[str], str | list[str]], fields: Json) -> list[float]:
    """Returns the score of each pair of texts in `data`, which has the first and the second side of the pairs."""
    given = {"data_1": data[0], "data_2": data[1]}
    found = await scoring.score(await llm.read(scores.parse_score, scores.FIELDS, given, fields))
    return list(found.values)


async def classify(llm: Caller, text: TextOrTokens, fields: Json) -> tuple[list[float], str | None]:
    """Returns the probability of each label, and the name of the likeliest one; None if labels have no names."""
    call, inputs = await llm.read(classes.parse_classify, classes.FIELDS, {"input": text}, fields)
    info, [found] = await classified(call, inputs)
    return found.values, classes.likeliest(found.values, info)
