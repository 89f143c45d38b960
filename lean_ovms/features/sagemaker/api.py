"""POST /invocations, to which Amazon SageMaker sends every request; the body shows for which endpoint it is.

https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html. As in vLLM, the endpoint is chosen
by the task of the model and then by the members of the body. The other path that SageMaker needs is /ping.
"""

from __future__ import annotations

import orjson

from ...api import router
from ...api.fields import Field, RouteDoc, json_body
from ...api.services import INLINE_BYTES, Services
from ...errors import BadRequest
from ...models.model import Model
from ...models.text_model import TextModel
from ...types import Json, Request, Response

ADAPTER = "x-amzn-sagemaker-adapter-identifier"
FORM = "multipart/form-data"
TRANSCRIPTIONS = "/v1/audio/transcriptions"
CHAT, BATCH = "/v1/chat/completions", "/v1/chat/completions/batch"
GENERATING = (
    (("messages",), CHAT),
    (("prompt",), "/v1/completions"),
    (("query", "items"), "/generative_scoring"),
    (("input",), "/v1/responses"),
)
"""The endpoints of models that generate text: a body goes to the first one whose members it has."""

FIELDS = (
    Field("model", "string",
        "name of a served model; its task and the other members of the body decide which endpoint answers"),
)  # fmt: skip


@RouteDoc(
    "Amazon SageMaker's path: forwards the body to the endpoint that it fits", body=FIELDS, answer="object or array"
)
async def handle(request: Request, services: Services) -> Response:
    adapter = request.headers.get(ADAPTER, "")
    if request.headers.get("content-type", "").strip().lower().startswith(FORM):
        if adapter:
            raise BadRequest(
                "the header for the model cannot be used with a form, whose field model names it", param="model"
            )
        return await services.forward(request, TRANSCRIPTIONS)
    limit = services.config.max_body_values if request.size >= INLINE_BYTES else 0

    def choose() -> str:
        body = json_body(request, limit)
        if adapter:
            request.body = orjson.dumps({**body, "model": adapter})
        return endpoint(body, services, adapter)

    path = await services.offload.run(request.size, choose, inline_below=INLINE_BYTES)
    return await services.forward(request, path)


def endpoint(body: Json, services: Services, name: str = "") -> str:
    """Returns the path of the endpoint for which a body is meant.

    Args:
        body: The body of the request.
        services: The options, and the models that are served.
        name: The model named by a header, which takes precedence over the body's; "" if there is none.

    Raises:
        RequestError: The body suits no endpoint of the model, or the model does not exist.
    """
    named = name or body.get("model")
    if not named or not isinstance(named, str):
        named = services.registry.default_of(Model)
    model = services.registry.get(named) if named else None
    composition = services.config.composition
    if model is None or isinstance(model, TextModel):
        bodies: tuple[tuple[tuple[str, ...], str], ...] = GENERATING
    else:  # a model does not serve every endpoint of its task for all other bodies, such as one with vectors of tokens
        rows_of_task = composition.task(model.config.task).bodies
        bodies = tuple((members, path) for members, path in rows_of_task if members or path in model.endpoints)
    rows = [(members, path) for members, path in bodies if path in router.paths(composition)]
    for members, path in rows:
        if all(body.get(member) is not None for member in members):
            return BATCH if path == CHAT and _several(body["messages"]) else path
    wanted = "; ".join(" and ".join(members) for members, _ in rows) or "no JSON objects at this path"
    raise BadRequest(f"the body does not fit any endpoint of the model; they accept: {wanted}", code="no_endpoint")


def _several(messages: object) -> bool:
    return isinstance(messages, list) and bool(messages) and isinstance(messages[0], list)
