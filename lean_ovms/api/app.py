"""App.handle(Request) -> Response: route, authorise, call the handler, turn errors into responses. Knows no sockets.

Every transport calls `handle` and nothing else. Handlers raise RequestError; this is the one place where an error
becomes a response, and one of the few places where any exception may be caught.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar

from ..config import Config
from ..errors import (
    InternalError,
    MethodNotAllowed,
    NotFound,
    RequestError,
    Unavailable,
    error_response,
    expects_anthropic,
)
from ..media.images.loader import ImageLoader
from ..models.model import Model, NotLoaded
from ..models.registry import ModelRegistry
from ..models.residency import Residency
from ..models.text_model import TextModel
from ..observability.logging import safe
from ..observability.metrics import Metrics, Prometheus
from ..observability.records import RequestRecord, current_record
from ..types import Json, Request, Response
from ..util import json_pieces
from ..util.budget import Budget, Lease
from ..util.concurrency import InlineTime, Offload, inline_time
from ..util.memory import Trimmer
from . import load_report, route_index
from .clients import Clients
from .fields import json_body
from .middleware import Auth, Cors, RequestRecords, hold, release_all
from .origin_policy import OriginPolicy
from .response import model_name
from .route_index import Entry
from .router import Table

logger = logging.getLogger("lean_ovms.api")

INLINE_BYTES = 32768
"""A body below this size is parsed on the event loop: a thousand messages, 3 ms at most (2026-11)."""
LARGE_BODY = 65536
"""Bodies from this size on count in --max_body_memory_mb."""
BODY_FACTOR = 2
"""Memory of a request in work by the size of its body: the body and what is parsed of it, or that and the prompt."""
MAX_WAITING_BODIES = 4
"""Memory for complete bodies that wait to be worked on, in bodies of the largest size."""

T = TypeVar("T")
S = TypeVar("S", bound="Service")


class Service(Protocol):
    """State that one API keeps for the life of an App. It is made by its first use."""

    def __init__(self, config: Config) -> None: ...

    async def drain(self, timeout_s: float) -> None:
        """Finish what runs, within timeout_s."""

    async def close(self) -> None:
        """End what still runs, and release files. Idempotent."""


class ModelManager(Protocol):
    """Keeps the registry in line with the configuration (deployment.manager). residency: what is in memory."""

    @property
    def residency(self) -> Residency: ...

    async def check(self) -> None: ...

    async def load(self) -> None: ...

    async def reload(self) -> bool: ...

    async def watch(self, period_s: float) -> None: ...

    async def stop(self) -> None: ...


class App:
    """The API over the models of a registry. manager: loads and replaces them; None: they stay as they are."""

    def __init__(self, config: Config, models: Iterable[Model] = (), metrics: Metrics | None = None) -> None:
        self.config = config
        self.offload = Offload(config.max_body_memory_mb << 20)
        self.trimmer = Trimmer()
        self.bodies = Budget(
            config.max_body_memory_mb << 20,
            MAX_WAITING_BODIES * BODY_FACTOR * config.max_body_bytes,
            "too many large requests at once",
            "too_many_large_requests",
            self.trimmer.soon,
        )
        self.metrics = metrics or (Prometheus(config.metrics_list) if config.metrics_enable else Metrics())
        self.registry = ModelRegistry(self.metrics, self.offload)
        for model in models:
            self.registry.install(model)
        self.manager: ModelManager | None = None
        self.draining = False
        self.records = RequestRecords(config, self.metrics)
        self._services: dict[type[Any], Any] = {}
        self._stopping = False
        self.image_loader = ImageLoader(config)
        self._entries = route_index.read()
        self._table = Table(self._entries)
        self._auth = Auth(config)
        self._cors = Cors(config)
        self._clients = Clients(config)
        self._origins = OriginPolicy(config, self._clients)

    def service(self, kind: type[S]) -> S:
        """The one instance of a class, made by its first use. Raises Unavailable."""
        if kind not in self._services:
            if self._stopping:
                raise Unavailable("the server is shutting down", code="shutting_down")
            self._services[kind] = kind(self.config)
        found: S = self._services[kind]
        return found

    async def open(self) -> None:
        """Import the endpoints that the options need, and await their `prepare`. Raises StartError."""
        for module in route_index.modules(self._entries):
            if module.option and getattr(self.config, module.option):
                await (await module.imported()).prepare(self)

    async def preload(self) -> None:
        """Import the main endpoints of the models that are served, before the first request does."""
        served = {kind.__name__ for model in self.registry.models.values() for kind in type(model).__mro__}
        for module in route_index.modules(self._entries):
            if module.model in served:
                await module.handlers()

    async def drain(self, timeout_s: float) -> None:
        """Let the services finish what runs, within timeout_s."""
        self._stopping = True
        await asyncio.gather(*(service.drain(timeout_s) for service in self._services.values()))

    async def close(self) -> None:
        """Close every service. Idempotent."""
        self._stopping = True
        self.trimmer.close()
        for service in self._services.values():
            await service.close()

    def default_model(self, values: Json) -> TextModel:
        """The model that is named, or else the only one that generates text. Raises RequestError."""
        return self.registry.get(
            values["model"] or self.registry.default_of(TextModel) or model_name(values), TextModel
        )

    async def parse_body(self, request: Request, parse: Callable[[Json, App], T]) -> T:
        """The parsed JSON body of a request; a large one is parsed in the offload thread. Raises RequestError.

        A model that is not known yet is loaded first: its properties decide what a request may ask for.
        """
        if request.size >= INLINE_BYTES:
            return await self._parse_large_body(request, parse)
        body = json_body(request)
        request.body = b""
        while True:
            try:
                return parse(body, self)
            except NotLoaded as error:
                model = error.model
            await model.wait_known()

    async def _parse_large_body(self, request: Request, parse: Callable[[Json, App], T]) -> T:
        """As parse_body, in the offload thread."""
        parsed: list[Json] = []  # when its model is not known yet

        def work() -> T:
            body = parsed.pop() if parsed else json_body(request, self.config.max_body_values)
            request.body = b""
            try:
                return parse(body, self)
            except NotLoaded:
                parsed.append(body)
                raise
            except RequestError:
                json_pieces.free(body)  # here, rather than with the error's traceback on the event loop
                raise

        size = request.size
        return await self.when_known(lambda: self.offload.run(size, work))

    async def count_body(self, size: int) -> Lease:
        """Room for a body, or a message, of so many bytes; a small one needs none. Raises Unavailable."""
        return await self.bodies.take(BODY_FACTOR * size) if size >= LARGE_BODY else Lease(self.bodies, 0)

    async def when_known(self, find: Callable[[], Awaitable[T]]) -> T:
        """What find returns; the models that it misses are loaded, after which it is called again. Raises
        RequestError."""
        while True:
            try:
                return await find()
            except NotLoaded as error:
                model = error.model
            await model.wait_known()

    def is_vital(self, method: str, path: str) -> bool:
        """Whether this request is served when there are too many connections, too: it reports on the server."""
        route = self._find(method, path)
        return route is not None and route.vital

    def check_head(self, request: Request) -> None:
        """Raises RequestError for a request, still without its body, that may not run whatever is in it."""
        route = self._find(request.method, self._below_root(request.path))
        if route is not None:
            self._origins.check(route, request)

    async def handle(self, request: Request) -> Response:
        """The response to a request; errors are responses too."""
        request.path = self._below_root(request.path)  # not in a copy, which would keep the body in memory
        record = self.records.start(request)
        record.peer, record.client = self._clients.source(request), self._clients.identify(request)
        token, inline_token = current_record.set(record), inline_time.set(InlineTime(record.client))
        try:
            response = await self._respond(request, record)
        except BaseException:  # the transport cancels when the client has disconnected
            release_all(record)
            self.records.cancelled(record)
            raise
        finally:
            current_record.reset(token)
            inline_time.reset(inline_token)
        response.headers += self._cors.headers(request)
        response.headers.append(("X-Request-Id", record.request_id))
        if expects_anthropic(request):
            response.headers.append(("Request-Id", record.request_id))
        response = self.records.observe(request, response, record)
        return hold(response, record) if record.releases else response

    async def _respond(self, request: Request, record: RequestRecord) -> Response:
        try:
            if request.size >= LARGE_BODY:
                record.releases.append((await self.count_body(request.size)).release)
            if request.method == "OPTIONS":
                return self._preflight(request)
            route = self._admit(request, record)
            response = await (route.handler or await route.load())(request, self)
            if form := request.headers.get(load_report.ASKED_IN, ""):
                await load_report.add(response, form, self.registry.names.get(record.model))
            return response
        except RequestError as error:
            record.error = error.code or error.kind
            return error_response(error, request=request, request_id=record.request_id)
        except Exception:
            logger.exception("%s %s failed (id %s)", request.method, safe(request.path), record.request_id)
            internal = InternalError()
            record.error = internal.code or internal.kind
            return error_response(internal, request=request, request_id=record.request_id)

    def _admit(self, request: Request, record: RequestRecord) -> Entry:
        """The route of a request that may use it. Raises RequestError."""
        route = self._route(request)
        record.route = route.path
        self._origins.check(route, request)
        self._auth.check(route, request)
        return route

    def _preflight(self, request: Request) -> Response:
        """The response to OPTIONS. Raises Forbidden where the request that would follow is refused."""
        route = self._find(request.headers.get("access-control-request-method", ""), request.path)
        if route is not None:
            self._origins.check(route, request)
        return self._cors.preflight(request)

    async def forward(self, request: Request, path: str) -> Response:
        """The response of another endpoint to a POST whose API key is checked. Raises RequestError."""
        request.path = path
        route = self._table.methods(path)["POST"]
        return await (route.handler or await route.load())(request, self)

    def _below_root(self, path: str) -> str:
        root = self.config.root_path
        return path.removeprefix(root) if root and path.startswith(root + "/") else path

    def _find(self, method: str, path: str) -> Entry | None:
        return self._table.methods(path).get("GET" if method == "HEAD" else method)

    def _route(self, request: Request) -> Entry:
        route = self._find(request.method, request.path)
        if route is not None:
            return self._table.variant(route, request)
        methods = self._table.methods(request.path)
        if methods:
            allow = ", ".join(methods)
            raise MethodNotAllowed(f"{safe(request.path)} answers {allow}, not {safe(request.method)}", allow=allow)
        near = self._table.suggest(request.path)
        advice = f"did you mean {near}?" if near else "/docs says what is served"
        raise NotFound(f"Invalid request URL: {safe(request.path)}; {advice}")
