"""POST /classify, vLLM's endpoint: the probability of each label for a text, by a model that classifies sequences."""

from __future__ import annotations

from functools import partial

import orjson

from ....api.fields import FieldSet, RouteDoc
from ....api.services import Services
from ....types import Request, Response
from .. import fields as shared
from ..types import PooledOutput, PoolingInfo
from .encoding import FLOATS, json_list, usage
from .request import PoolingRequest, classified, parse_with_inputs

FIELDS = FieldSet(shared.INPUTS)
parse_classify = partial(parse_with_inputs, fields=FIELDS)


@RouteDoc("Probabilities of a model's labels", body=FIELDS, rules=shared.ONE_INPUT)
async def handle(request: Request, services: Services) -> Response:
    call, inputs = await services.parse_body(request, parse_classify)
    info, outputs = await classified(call, inputs)
    return await call.render(outputs, lambda: full(call, info, outputs))


def full(call: PoolingRequest, info: PoolingInfo, outputs: list[PooledOutput]) -> Response:
    """Returns the response: for each input its likeliest label and the probabilities of all labels."""
    items = [_item(index, info, output) for index, output in enumerate(outputs)]
    counts = usage(sum(output.tokens for output in outputs))
    return json_list(call.envelope("classify"), items, counts, call.headers)


def _item(index: int, info: PoolingInfo, output: PooledOutput) -> bytes:
    values = output.values
    label = likeliest(values, info)
    return b'{"index":%d,"label":%b,"probs":%b,"num_classes":%d}' % (
        index,
        orjson.dumps(label),
        FLOATS.json(output),
        len(values),
    )


def likeliest(values: list[float], info: PoolingInfo) -> str | None:
    """Returns the name of the label with the highest probability, or None if the model's labels have no names."""
    best = max(range(len(values)), key=values.__getitem__)
    return info.labels[best] if best < len(info.labels) else None
