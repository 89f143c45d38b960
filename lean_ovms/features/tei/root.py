"""POST /, to which clients send what they do not send to a named endpoint, such as huggingface_hub's InferenceClient.

As in https://huggingface.github.io/text-embeddings-inference/, the task of the model decides which endpoint answers;
here also the members of the body.
"""

from __future__ import annotations

from ...api.fields import Field, RouteDoc, json_body
from ...api.services import INLINE_BYTES, Services
from ...types import Json, Request, Response
from ..pooling.model import PoolingModel
from ..pooling.types import SPARSE

FIELDS = (
    Field("model", "string",
        "name of a served model; its task and the other members of the body decide which endpoint answers"),
)  # fmt: skip
LABELLING = ("classify", "rerank")
"""The tasks of models that predict labels."""


@RouteDoc("Forwards the body to the endpoint below that it fits", body=FIELDS, answer="array")
async def handle(request: Request, services: Services) -> Response:
    limit = services.config.max_body_values if request.size >= INLINE_BYTES else 0

    def choose() -> str:
        return endpoint(json_body(request, limit), services)

    path = await services.offload.run(request.size, choose, inline_below=INLINE_BYTES)
    return await services.forward(request, path)


def endpoint(body: Json, services: Services) -> str:
    """Returns the path of the endpoint for which a body is meant. Raises RequestError for an unknown model."""
    inputs = body.get("inputs")
    if isinstance(inputs, dict):
        return "/similarity"
    if body.get("texts") is not None:
        return "/rerank"
    named = body.get("model") or services.registry.default_of(PoolingModel)
    model = services.registry.get(named) if isinstance(named, str) and named else None
    if model is not None and model.config.task in LABELLING:
        return "/predict"
    sparse = isinstance(model, PoolingModel) and model.known and model.own_pooling.kind == SPARSE
    return "/embed_sparse" if sparse else "/embed"
