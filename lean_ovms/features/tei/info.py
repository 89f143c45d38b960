"""GET /info and POST /decode: what a model and its limits are, and the texts of token ids.

https://huggingface.github.io/text-embeddings-inference/. Clients read the task, the longest input and the largest batch
of a model from /info.
"""

from __future__ import annotations

from typing import Any

from ..._version import __version__
from ...api.fields import Field, FieldSet, RouteDoc, read
from ...api.generation.sampling import token_ids
from ...api.queries import read_query
from ...api.response import json, written
from ...api.schemas import TOKENS, any_of, array
from ...api.services import Services
from ...errors import BadRequest
from ...models.text_model import TokenModel
from ...types import Json, Request, Response
from ..pooling import fields as shared
from ..pooling.api.inputs import check_count
from ..pooling.feature import PoolingOptions
from ..pooling.model import PoolingModel
from ..pooling.types import SCORE, VECTORS, PoolingInfo

QUERY = FieldSet((shared.MODEL,))
DECODE = FieldSet((
    shared.MODEL,
    Field("ids", "array", "token ids of a text, or lists of token ids", required=True,
        schema=any_of(TOKENS, array(TOKENS, 1))),
    Field("skip_special_tokens", "bool", "leave out special tokens", default=True),
))  # fmt: skip
POOLING = {"LAST": "last_token"}
"""Names of pooling modes that are not those of this server in lower case."""


@RouteDoc("A model and its limits", query=QUERY, errors=(404, 503))
async def handle(request: Request, services: Services) -> Response:
    query = read_query(QUERY, request.query)
    model = await services.when_known(lambda: services.named_model(query, PoolingModel).serving())
    options, info = model.options, model.own_pooling
    return json({
        "model_id": model.name,
        "model_sha": None,
        "model_dtype": "float32",
        "served_model_name": model.name,
        "model_type": _model_type(info),
        "max_concurrent_requests": model.config.max_queued_requests,
        "max_input_length": info.window,
        "max_batch_tokens": options.pooling_batch_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": services.config.of(PoolingOptions).max_pooling_inputs,
        "auto_truncate": options.truncate,
        "tokenization_workers": 1,
        "version": __version__,
        "sha": None,
        "docker_label": None,
    })  # fmt: skip


def _model_type(info: PoolingInfo) -> Json:
    if info.kind in VECTORS:
        return {"embedding": {"pooling": POOLING.get(info.pooling, info.pooling.lower())}}
    labels = info.labels or [f"LABEL_{place}" for place in range(info.dimensions)]
    named: Json = {
        "id2label": {str(place): label for place, label in enumerate(labels)},
        "label2id": {label: place for place, label in enumerate(labels)},
    }
    return {"reranker" if info.kind == SCORE else "classifier": named}


@RouteDoc("The texts of token ids", body=DECODE, answer="array")
async def handle_decode(request: Request, services: Services) -> Response:
    model, ids, skip = await services.parse_body(request, _read)
    texts = [await model.decode(one, skip, "ids") if one else "" for one in ids]
    return await written(services.offload, 2 * sum(map(len, texts)), lambda: texts)


def _read(body: Json, services: Services) -> tuple[TokenModel, list[list[int]], bool]:
    values = read(DECODE, body)
    model = services.named_model(values, TokenModel if values["model"] else PoolingModel)
    ids: list[Any] | None = values["ids"]
    if not ids:
        raise BadRequest("ids field is required" if ids is None else "ids array should not be empty", param="ids")
    several = all(isinstance(one, list) for one in ids)
    lists = ids if several else [ids]
    check_count(len(lists), services.config.of(PoolingOptions).max_pooling_inputs, "ids")
    for place, one in enumerate(lists):
        token_ids(one, f"ids[{place}]" if several else "ids")
    return model, lists, values["skip_special_tokens"]
