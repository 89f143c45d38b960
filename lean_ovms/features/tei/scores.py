"""POST /similarity and /predict: how near sentences are to another one, and the labels of texts with their scores.

https://huggingface.github.io/text-embeddings-inference/. Like /embed they return plain lists, and name no model.
"""

from __future__ import annotations

from typing import Any

import orjson

from ...api.fields import Field, FieldSet, RouteDoc, read
from ...api.response import json_bytes
from ...api.schemas import STRING, any_of, array, object_of
from ...api.services import Services
from ...errors import BadRequest
from ...types import Json, Request, Response
from ..pooling import fields as shared
from ..pooling.api.encoding import shortest
from ..pooling.api.inputs import check_count
from ..pooling.api.request import Inputs, PoolingRequest, classified, items_of, parse
from ..pooling.feature import PoolingOptions
from ..pooling.types import EMBED, PooledOutput, PoolingInfo

PARAMETERS = FieldSet((*shared.TEI_TRUNCATION, shared.PROMPTS[0]))
READ = (*shared.TRUNCATION, shared.USE_ACTIVATION, shared.NORMALIZE, *shared.PROMPTS)
"""Fields that /embed has, with which the inputs are encoded."""
SIMILARITY = FieldSet((
    *shared.COMMON,
    Field("inputs", "object", "source_sentence, and sentences that are compared with it", required=True,
        schema=object_of({"source_sentence": STRING, "sentences": array(STRING, 1)})),
    Field("parameters", "object", "truncate, truncation_direction and prompt_name", fields=PARAMETERS),
    *READ,
))  # fmt: skip
_TEXTS = array(STRING, 1) | {"maxItems": 1}
PREDICT = FieldSet((
    *shared.COMMON,
    Field("inputs", "any", "a text, or several as arrays of one text each", required=True,
        schema=any_of(STRING, _TEXTS, array(_TEXTS, 1))),
    Field("raw_scores", "bool", "return scores before softmax or sigmoid", default=False),
    *shared.TEI_TRUNCATION,
    *READ,
))  # fmt: skip


@RouteDoc("Cosines of the vectors of a sentence and others", body=SIMILARITY, answer="array")
async def handle_similarity(request: Request, services: Services) -> Response:
    call, inputs = await services.parse_body(request, _read_similarity)
    info = call.info((EMBED,))
    params = call.params(info, normalize=True)
    outputs = await call.encode(await items_of(call, inputs, info), params, "inputs")
    return await call.render(outputs, lambda: json_bytes(orjson.dumps(_cosines(outputs)), call.headers))


def _read_similarity(body: Json, services: Services) -> tuple[PoolingRequest, Inputs]:
    call = parse(body, services, fields=SIMILARITY)
    given = call.values["inputs"]
    if given is None:
        raise BadRequest("inputs field is required", param="inputs")
    source, sentences = given.get("source_sentence"), given.get("sentences")
    if not isinstance(source, str):
        raise BadRequest("source_sentence must be a string", param="inputs.source_sentence")
    if not isinstance(sentences, list) or not sentences or not all(isinstance(one, str) for one in sentences):
        raise BadRequest("sentences must be a non-empty array of strings", param="inputs.sentences")
    check_count(len(sentences) + 1, services.config.of(PoolingOptions).max_pooling_inputs, "inputs.sentences")
    parameters = read(PARAMETERS, call.values["parameters"] or {})
    named = {"prompt_name": parameters["prompt_name"]} if parameters["prompt_name"] else {}
    return call.with_values(shared.tei_truncation(parameters) | named), Inputs([source, *sentences])


def _cosines(outputs: list[PooledOutput]) -> list[float]:
    source, *others = [output.values for output in outputs]
    return [shortest(sum(a * b for a, b in zip(source, other, strict=True))) for other in others]


@RouteDoc("Labels of texts with their scores, the highest first", body=PREDICT, answer="array")
async def handle_predict(request: Request, services: Services) -> Response:
    call, inputs, several = await services.parse_body(request, _read_predict)
    info, outputs = await classified(call, inputs)

    def work() -> Response:
        found = [_predictions(output, info) for output in outputs]
        return json_bytes(orjson.dumps(found if several else found[0]), call.headers)

    return await call.render(outputs, work)


def _read_predict(body: Json, services: Services) -> tuple[PoolingRequest, Inputs, bool]:
    call = parse(body, services, fields=PREDICT)
    value = call.values["inputs"]
    several = isinstance(value, list) and any(isinstance(one, list) for one in value)
    texts = [_text(one) for one in value] if several else [_text(value)]
    check_count(len(texts), services.config.of(PoolingOptions).max_pooling_inputs, "inputs")
    raw = {"use_activation": False} if call.values["raw_scores"] else {}
    return call.with_values(shared.tei_truncation(call.values) | raw), Inputs([*texts]), several


def _text(value: Any) -> str:
    """Returns the text of an input, which may be alone in an array. Raises BadRequest."""
    if value is None:
        raise BadRequest("inputs field is required", param="inputs")
    if isinstance(value, list) and len(value) == 2 and all(isinstance(one, str) for one in value):
        raise BadRequest("pairs of texts are not supported here; use /rerank or /score", param="inputs")
    text = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not isinstance(text, str):
        raise BadRequest("inputs must be a string, or an array of arrays of one string", param="inputs")
    return text


def _predictions(output: PooledOutput, info: PoolingInfo) -> list[Json]:
    scores = [
        {"score": shortest(score), "label": info.labels[place] if place < len(info.labels) else f"LABEL_{place}"}
        for place, score in enumerate(output.values)
    ]
    return sorted(scores, key=lambda one: -one["score"])
