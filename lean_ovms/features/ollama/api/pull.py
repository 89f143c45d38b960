"""POST /api/pull and DELETE /api/delete, with --allow_runtime_pull; a 501 for what is not supported.

https://docs.ollama.com/api/pull. Models have their names on the hub (organisation/name, also with hf.co/ before it as
in Ollama). For a model that is already served, the pull finishes at once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from ....api.fields import Field, FieldSet, RouteDoc, Values, read
from ....api.generation.common_fields import MODEL
from ....api.response import json
from ....api.services import Services
from ....errors import Forbidden, ModelNotFound, RequestError, StartError, reported
from ....manifest import RUNTIME_PULLS
from ....models.model import Deployment
from ....observability.logging import safe
from ....types import Request, Response
from ....types.push import Sink
from ...deployment.desired import Report, RepositoryPulls, pulls_at_run_time
from ..errors import ollama_error
from ..fields import STREAMED
from . import names
from .answer import NDJSON, line, ndjson
from .body import parse_body

logger = logging.getLogger("lean_ovms.api")

NAMED = replace(MODEL, help="name of a model on the hub, as organisation/name")
FIELDS = FieldSet((
    NAMED,
    names.NAME,
    STREAMED,
    Field("insecure", "bool", "accepted without effect"),
))  # fmt: skip
DELETE_FIELDS = FieldSet((NAMED, names.NAME))
NOT_ALLOWED = (
    "clients may not pull or delete models on this server; start it with a directory of models "
    "(--model_repository_path) and --allow_runtime_pull"
)
DIGITS = 12
"""The number of digits of a hash in a status, as in Ollama."""
LAST = ("verifying sha256 digest", "writing manifest", "success")


@RouteDoc("Pull a model from the hub; needs --allow_runtime_pull", body=FIELDS, media=(NDJSON,), errors=(403,))
async def handle_pull(request: Request, services: Services) -> Response:
    values = await parse_body(request, services, lambda body, _: read(FIELDS, body))
    pull = _pull_of(values, services)
    if values["stream"]:
        return ndjson(PullStream(pull))
    await pull(lambda *_: None)
    return json({"status": LAST[-1]})


@RouteDoc("Delete a model of the repository; needs --allow_runtime_pull", body=DELETE_FIELDS, answer="", errors=(403,))
async def handle_delete(request: Request, services: Services) -> Response:
    values = await parse_body(request, services, lambda body, _: read(DELETE_FIELDS, body))
    name = services.registry.get(names.find(values, services.registry)).name
    pulls, manager = _pulls(services)
    await pulls.delete(name, partial(_reload, manager, lambda: name not in services.registry.models))
    return Response(200)


@RouteDoc("Not supported; answered with 501", errors=(501,), answer="")
async def handle_unsupported(request: Request, services: Services) -> Response:
    text = f"{safe(request.path)} is not supported: models are exported by optimum-cli or pulled from the hub"
    raise RequestError(text, status=501, code="not_supported")


Pull = Callable[[Report], Awaitable[None]]
"""A function that pulls a model, and calls its argument in the way that RepositoryPulls.pull describes."""


async def _nothing(report: Report) -> None:
    """Pulls a model that is already present, which does nothing."""


def _pull_of(values: Values, services: Services) -> Pull:
    """Returns the function that pulls the model in a body. Raises RequestError."""
    try:
        names.find(values, services.registry)
    except ModelNotFound:
        name = names.without_hub(values["model"] or values["name"]).removesuffix(names.LATEST)
        pulls, manager = _pulls(services)

        def is_served() -> bool:
            model = services.registry.models.get(name)
            return model is not None and model.failure is None

        return partial(pulls.pull, name, serve=partial(_reload, manager, is_served))
    return _nothing


async def _reload(manager: Deployment, is_done: Callable[[], bool]) -> None:
    """Serves the changed models. Raises StartError, unless `is_done` shows that only other models cannot be served."""
    try:
        await manager.reload()
    except StartError:
        if not is_done():
            raise


def _pulls(services: Services) -> tuple[RepositoryPulls, Deployment]:
    """Returns the objects that pull and delete models, and that serve the changed models. Raises RequestError."""
    manager = services.manager
    if manager is None or not pulls_at_run_time(services.config):
        raise Forbidden(NOT_ALLOWED, code="pull_not_allowed")
    return services.get(services.config.part(RUNTIME_PULLS)), manager


class PullStream:
    """A ByteStream of the progress of a pull. The pull ends together with the stream."""

    def __init__(self, pull: Pull) -> None:
        self._pull = pull

    async def push_to(self, sink: Sink[bytes]) -> None:
        sink.push(line({"status": "pulling manifest"}))
        try:
            await self._pull(partial(_report, sink))
        except Exception as error:
            sink.push(line(dict(ollama_error(reported(error, logger, "a pull failed")))))
        else:
            for status in LAST:
                sink.push(line({"status": status}))

    async def aclose(self) -> None:
        """Does nothing, since the transport cancels `push_to`."""


def _report(sink: Sink[bytes], path: str, digest: str, size: int, there: int) -> None:
    """Sends an object of the stream. Small files have no SHA-256, and therefore no progress.

    Args:
        sink: The receiver of the stream.
        path: The path of the file.
        digest: The SHA-256 of the file.
        size: The size of the file in bytes.
        there: The bytes that are present.
    """
    known = {"digest": f"sha256:{digest}", "total": size, "completed": there} if digest else {}
    sink.push(line({"status": f"pulling {digest[:DIGITS] or path}", **known}))
