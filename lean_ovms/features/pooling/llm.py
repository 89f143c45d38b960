"""Vectors, scores and classes as methods of LLM and AsyncLLM; llm is what reads fields and has the model."""

from __future__ import annotations

from ...api.caller import Caller
from ...types import Json
from .api import classify as classes
from .api import embeddings, scoring
from .api import score as scores
from .types import TextOrTokens


async def embed(llm: Caller, text: TextOrTokens, fields: Json) -> list[float]:
    """Returns the vector of a text. fields: those of embeddings. Raises RequestError, and TypeError for another."""
    call, inputs, _ = await llm.read(embeddings.parse_embeddings, embeddings.FIELDS, {"input": text}, fields)
    [found] = await embeddings.embed(call, inputs)
    return found.values


async def score(llm: Caller, data: tuple[str | list[str], str | list[str]], fields: Json) -> list[float]:
    """Returns how well texts fit each other. fields: those of /score. Raises RequestError; TypeError for another."""
    given = {"data_1": data[0], "data_2": data[1]}
    found = await scoring.score(await llm.read(scores.parse_score, scores.FIELDS, given, fields))
    return list(found.values)


async def classify(llm: Caller, text: TextOrTokens, fields: Json) -> tuple[list[float], str | None]:
    """Returns the probabilities of the labels, and the likeliest label; None if the labels have no names.

    fields: those of /classify. Raises RequestError, and TypeError for another.
    """
    call, inputs = await llm.read(classes.parse_classify, classes.FIELDS, {"input": text}, fields)
    info, [found] = await classes.classify(call, inputs)
    return found.values, classes.likeliest(found.values, info)
