"""POST /similarity and /predict: how near sentences are to another one, and the labels of texts with their scores.

https://huggingface.github.io/text-embeddings-inference/. Like /embed they return plain lists, and name no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from ...api.fields import Field, FieldSet, RouteDoc, read
from ...api.response import json_bytes
from ...api.schemas import STRING, any_of, array, object_of
from ...api.services import Services
from ...errors import BadRequest, errors_of
from ...types import Json, Request, Response
from ..pooling import fields as shared
from ..pooling.api.encoding import shortest
from ..pooling.api.inputs import check_count
from ..pooling.api.request import Inputs, PoolingRequest, classified, items_of, parse
from ..pooling.feature import PoolingOptions
from ..pooling.types import EMBED, PooledOutput, PoolingInfo, PoolingInput

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
_TEXTS = array(STRING, 1) | {"maxItems": 2}
PREDICT = FieldSet((
    *shared.COMMON,
    Field("inputs", "any", "a text or a pair of texts, or several as arrays of one text or of two", required=True,
        schema=any_of(STRING, _TEXTS, array(_TEXTS, 1))),
    Field("raw_scores", "bool", "return scores before softmax or sigmoid", default=False),
    *shared.TEI_TRUNCATION,
    *READ,
))  # fmt: skip


@RouteDoc("Cosines of the vectors of a sentence and others", body=SIMILARITY, answer="array")
async def handle_similarity(request: Request, services: Services) -> Response:
    call, inputs = await services.parse_body(request, _read_similarity)
    info = call.info((EMBED,))
    outputs = await call.encode(await items_of(call, inputs, info), call.params(info), inputs.param)

    def work() -> Response:
        from ..pooling import vectors

        source, *others = [output.data for output in outputs]
        return json_bytes(orjson.dumps([shortest(one) for one in vectors.cosines([source], others)]), call.headers)

    return await call.render(outputs, work)


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
    with errors_of("parameters", member=True):
        parameters = read(PARAMETERS, call.values["parameters"] or {})
    named = {"prompt_name": parameters["prompt_name"]} if parameters["prompt_name"] else {}
    inputs = Inputs(items=[source, *sentences], param="inputs")
    return call.with_values(shared.tei_truncation(parameters) | named), inputs


@dataclass(frozen=True, slots=True)
class PredictRequest:
    """The body of a request for labels."""

    call: PoolingRequest
    """The fields of the request, and its model."""
    inputs: list[tuple[str, ...]]
    """The inputs, each one text or a pair of texts."""
    several: bool
    """Whether the response is a list with the labels of each input, instead of the labels of one."""


@RouteDoc("Labels of texts with their scores, the highest first", body=PREDICT, answer="array")
async def handle_predict(request: Request, services: Services) -> Response:
    predict = await services.parse_body(request, _read_predict)
    call = predict.call
    singles = [one[0] for one in predict.inputs if len(one) == 1]
    info, outputs = await classified(call, Inputs(items=singles, param="inputs"))
    pairs: list[PoolingInput] = [(one[0], one[1]) for one in predict.inputs if len(one) > 1]
    if pairs and not info.pair:
        raise BadRequest("this model reads single texts, not pairs", param="inputs")
    of_pairs = await call.encode(pairs, call.params(info), "inputs") if pairs else []

    def work() -> Response:
        each, other = iter(outputs), iter(of_pairs)
        found = [_predictions(next(other if len(one) > 1 else each), info) for one in predict.inputs]
        return json_bytes(orjson.dumps(found if predict.several else found[0]), call.headers)

    return await call.render([*outputs, *of_pairs], work)


def _read_predict(body: Json, services: Services) -> PredictRequest:
    call = parse(body, services, fields=PREDICT)
    value = call.values["inputs"]
    several = isinstance(value, list) and any(isinstance(one, list) for one in value)
    inputs = [_texts(one) for one in value] if several else [_texts(value)]
    check_count(len(inputs), services.config.of(PoolingOptions).max_pooling_inputs, "inputs")
    raw = {"use_activation": False} if call.values["raw_scores"] else {}
    return PredictRequest(call.with_values(shared.tei_truncation(call.values) | raw), inputs, several)


def _texts(value: Any) -> tuple[str, ...]:
    """Returns one input, which is a text, or an array of one text or of two. Raises BadRequest."""
    if value is None:
        raise BadRequest("inputs field is required", param="inputs")
    texts = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else ()
    if not 1 <= len(texts) <= 2 or not all(isinstance(one, str) for one in texts):
        raise BadRequest("inputs must be a string, or an array of arrays of one or two strings", param="inputs")
    return texts


def _predictions(output: PooledOutput, info: PoolingInfo) -> list[Json]:
    scores = [
        {"score": shortest(score), "label": info.labels[place] if place < len(info.labels) else f"LABEL_{place}"}
        for place, score in enumerate(output.values)
    ]
    return sorted(scores, key=lambda one: -one["score"])
