"""POST /pooling, vLLM's endpoint: vectors of texts, vectors of tokens, or classes, by any pooling model."""

from __future__ import annotations

from functools import partial
from typing import Any

from ....api.fields import Field, FieldSet
from ....api.services import Services
from ....errors import BadRequest
from ....types import Json, Request, Response
from .. import fields as shared
from ..types import (
    CLASSIFY,
    EMBED,
    KINDS,
    ONLY_PER_TOKEN,
    PER_TOKEN,
    POOLED,
    SCORE,
    SPARSE,
    TOKEN_CLASSIFY,
    TOKEN_EMBED,
    PooledOutput,
    PoolingInfo,
)
from .encoding import ENCODING, Encoding, results_response
from .request import Inputs, PoolingRequest, items_of, parse_with_inputs

TASKS = {
    EMBED: (EMBED, TOKEN_EMBED),
    SCORE: (CLASSIFY,),
    CLASSIFY: (CLASSIFY,),
    TOKEN_CLASSIFY: (TOKEN_CLASSIFY,),
    TOKEN_EMBED: (TOKEN_EMBED,),
    SPARSE: (EMBED,),
}
"""Values of `task` by the kind of the model; the first is the default."""
REFUSED = {
    "plugin": "No IOProcessor plugin installed.",
    "score": "`score` task was removed; use `classify` instead.",
    "encode": "`encode` task was removed; use `token_embed` or `token_classify` instead.",
}


def _dimensions(value: Any) -> Any:
    raise BadRequest("dimensions is currently not supported", param="dimensions")


FIELDS = FieldSet((
    *shared.INPUTS,
    shared.NORMALIZE,
    Field("task", "string", "embed, token_embed, classify or token_classify; the model's own task if absent",
        schema={"enum": [EMBED, TOKEN_EMBED, CLASSIFY, TOKEN_CLASSIFY]}),
    *ENCODING,
    Field("dimensions", "any",
        "refused, as in vLLM; only /embeddings supports it", read=_dimensions, schema={"enum": [None]}),
    *shared.PROMPTS,
))  # fmt: skip


@shared.vectors_doc("The output of a pooling model: vectors, or scores of its labels", FIELDS)
async def handle(request: Request, services: Services) -> Response:
    call, inputs = await services.parse_body(request, parse)
    outputs, per_token = await compute(call, inputs)
    encoding = Encoding.of(call.values, per_token=per_token)
    work = partial(results_response, call, encoding, outputs, prefix="pooling", kind=b"pooling", member=b"data")
    return await call.render(outputs, work, numpy=encoding.needs_numpy)


async def compute(call: PoolingRequest, inputs: Inputs) -> tuple[list[PooledOutput], bool]:
    """Returns the result of each input, and whether a result has a row for each token. Raises RequestError."""
    info = call.info(KINDS)
    per_token = _task(call.values["task"], info) in ONLY_PER_TOKEN
    params = call.params(info, output=PER_TOKEN if per_token else POOLED, add_special_tokens=inputs.adds_special(info))
    return await call.encode(await items_of(call, inputs, info), params, inputs.param), per_token


def parse(body: Json, services: Services) -> tuple[PoolingRequest, Inputs]:
    """Reads the body of a pooling request. Raises RequestError."""
    call, inputs = parse_with_inputs(body, services, fields=FIELDS)
    Encoding.of(call.values)
    return call, inputs


def _task(task: str | None, info: PoolingInfo) -> str:
    """Returns the requested task, or the model's default one. Raises BadRequest if the model does not support it."""
    supported = TASKS[info.kind][: None if info.has_token_vectors else 1]
    if task is None:
        return supported[0]
    if task not in supported:
        names = ", ".join(f"'{name}'" for name in supported)
        raise BadRequest(
            REFUSED.get(task) or f"Unsupported task: {task[:80]!r} Supported tasks: ({names})", param="task"
        )
    return task
