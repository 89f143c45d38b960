"""Answers requests: finds the route, authorises the client, calls the handler, and turns errors into responses.

Every transport calls `App.handle` and nothing else; sockets are unknown here. Handlers raise RequestError: this is the
only place where an error becomes a response, and one of the few places where any exception may be caught.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from ..composition import below_root
from ..config import Config
from ..errors import MethodNotAllowed, NotFound, reported
from ..manifest import LOAD_REPORTS, METRICS, Route, named
from ..models.model import Model, ModelRegistry
from ..observability.logging import safe
from ..observability.records import Metrics, RequestRecord, current_record
from ..types import Request, Response
from ..util.concurrency import Budget, InlineTime, Offload, inline_time
from ..util.resources import Trimmer
from . import router
from .keys import ApiKey, kind_of
from .middleware import Clients, Cors, OriginPolicy, RequestRecords, release_all
from .router import Table, load
from .services import BODY_FACTOR, LARGE_BODY, Services

logger = logging.getLogger("lean_ovms.api")

LOAD_REPORT = "endpoint-load-metrics-format"
"""The header of requests whose response should have a report of the engine's load."""
MAX_WAITING_BODIES = 4
"""Memory for complete bodies that wait to be worked on, in bodies of the largest size."""


class App:
    """The API over the models of a registry."""

    def __init__(self, config: Config, models: Iterable[Model] = ()) -> None:
        self.config = config
        self.trimmer = Trimmer()
        new_metrics = config.part(METRICS)
        metrics: Metrics = new_metrics(config) if new_metrics else Metrics()
        offload = Offload(config.max_body_memory_mb << 20)
        self.registry = ModelRegistry(metrics, offload)
        for model in models:
            self.registry.install(model)
        self.services = Services(
            config=config,
            registry=self.registry,
            metrics=metrics,
            offload=offload,
            bodies=Budget(
                config.max_body_memory_mb << 20,
                MAX_WAITING_BODIES * BODY_FACTOR * config.max_body_bytes,
                "too many large requests at once",
                "too_many_large_requests",
                self.trimmer.soon,
            ),
            records=RequestRecords(config, metrics),
            keys=kind_of(config)(config),
            handle=self.handle,
            forward=self._forward,
        )
        """What its endpoints work with."""
        self._records = self.services.records
        self._error_forms = config.composition.error_forms
        ports = {option: config.value(option) for option in config.composition.ports}
        self._table = Table(router.served(config), ports)
        self._advice = f"; {router.DOCS} lists the endpoints" if router.DOCS in router.pages(config) else ""
        self._keys = self.services.keys
        self._cors = Cors(config)
        self._clients = Clients(config)
        self._origins = OriginPolicy(config, self._clients, with_key=self._keys.required)

    async def open(self) -> None:
        """Starts what the server's features run for its whole life. Raises StartError if one of them cannot start."""
        for row in self.config.composition.start_rows:
            if self.config.any_set(row.options):
                await (await asyncio.to_thread(named, row.package, row.prepare))(self.services)

    async def preload(self) -> None:
        """Imports the main endpoints of the models that are served, and their tables, before the first request does."""
        self.config.composition.prepare_requests()
        served = {kind.__name__ for model in self.registry.models.values() for kind in type(model).__mro__}
        for route in self.config.composition.routes:
            if route.model in served:
                await load(route)

    async def drain(self, timeout_s: float) -> None:
        """Waits until the services have finished running work, at most timeout_s seconds."""
        self.services.stopping = True
        await asyncio.gather(*(service.drain(timeout_s) for service in self.services.states.values()))

    async def end(self) -> None:
        """Stops the services, and then the engines, so that running requests end with an error. Idempotent."""
        await self.drain(0)
        if self.services.manager is not None:
            await self.services.manager.stop()

    async def close(self) -> None:
        """Closes every service. Idempotent."""
        self.services.stopping = True
        self.trimmer.close()
        for service in self.services.states.values():
            await service.close()
        await self._records.close()
        await self._keys.close()

    def is_vital(self, method: str, path: str) -> bool:
        """Returns whether a request's route reports on the server, and is served beyond the limit of connections."""
        route = self._find(method, self._below_root(path))
        return route is not None and route.vital

    def route(self, request: Request) -> Route | None:
        """Returns the route that matches a request, or None. It does not check whether the client may use it."""
        route = self._find(request.method, self._below_root(request.path))
        return route if route is None else self._table.variant(route, request)

    def check_head(self, request: Request) -> None:
        """Raises RequestError for a host or origin that is not allowed; called before the body is read."""
        route = self._find(request.method, self._below_root(request.path))
        if route is not None:
            self._origins.check(route, request)

    async def handle(self, request: Request) -> Response:
        """Returns the response to a request. An error becomes a response, too."""
        request.path = self._below_root(request.path)  # not in a copy, which would keep the body in memory
        record = self._records.start(request)
        key = record.key = self._keys.find(request)
        record.peer = self._clients.source(request)
        named = request.on_behalf_of or (key.client if key is not None else "")
        record.client = named or self._clients.identify(request)
        token, inline_token = current_record.set(record), inline_time.set(InlineTime(record.client))
        try:
            response = await self._respond(request, record, key)
        except BaseException:  # the transport cancels when the client has disconnected
            release_all(record)
            self._records.cancelled(record)
            raise
        finally:
            current_record.reset(token)
            inline_time.reset(inline_token)
        response.headers += self._cors.headers(request)
        response.headers.append(("X-Request-Id", record.request_id))
        if record.traceparent:
            response.headers.append(("traceparent", record.traceparent))
        if key is not None:
            response.headers += key.headers()
        form = self._error_forms.of(request)
        if form is not None and form.request_id:
            response.headers.append((form.request_id, record.request_id))
        return self._records.observe(request, response, record)

    async def _respond(self, request: Request, record: RequestRecord, key: ApiKey | None) -> Response:
        try:
            if request.size >= LARGE_BODY:
                record.release_body = (await self.services.count_body(request.size)).release
                record.releases.append(record.release_body)
            if request.method == "OPTIONS":
                return self._preflight(request)
            route = self._admit(request, record, key)
            response = await (await load(route))(request, self.services)
            record.quiet = record.quiet or (route.vital and response.status < 400)  # requested all the time
            form = request.headers.get(LOAD_REPORT, "")
            if form and (add_report := self.config.part(LOAD_REPORTS)) is not None:
                await add_report(response, form, self.registry.names.get(record.model))
            return response
        except Exception as failure:
            named = (request.method, safe(request.path), record.request_id)
            error = reported(failure, logger, "%s %s failed (id %s)", *named)
            record.error = error.code or error.kind
            return self._error_forms.response(error, request=request, request_id=record.request_id)

    def _admit(self, request: Request, record: RequestRecord, key: ApiKey | None) -> Route:
        """Returns the route of a request after checking that the client may use it. Raises RequestError if not."""
        route = self._route(request)
        record.route, request.ids = route.path, router.ids_of(route, request.path)
        self._origins.check(route, request)
        self._keys.check(route, request, key, record)
        return route

    def _preflight(self, request: Request) -> Response:
        """Returns the response to an OPTIONS request. Raises Forbidden if the announced request would be refused."""
        route = self._find(request.headers.get("access-control-request-method", ""), request.path)
        if route is not None:
            self._origins.check(route, request)
        return self._cors.preflight(request)

    async def _forward(self, request: Request, path: str) -> Response:
        """Has another endpoint answer a POST whose API key has been checked already. Raises RequestError."""
        own_path, request.path = request.path, path
        try:
            return await (await load(self._route(request)))(request, self.services)
        except BaseException:
            request.path = own_path  # which decides the form of the error
            raise

    def _below_root(self, path: str) -> str:
        return below_root(path, self.config.root_path)

    def _find(self, method: str, path: str) -> Route | None:
        return self._table.methods(path).get("GET" if method == "HEAD" else method)

    def _route(self, request: Request) -> Route:
        route = self._find(request.method, request.path)
        if route is not None:
            return self._table.variant(route, request)
        methods = self._table.methods(request.path)
        if methods:
            allow = ", ".join(methods)
            raise MethodNotAllowed(f"{safe(request.path)} accepts {allow}, not {safe(request.method)}", allow=allow)
        near = self._table.suggest(request.path)
        advice = f"; did you mean {near}?" if near else self._advice
        raise NotFound(f"Invalid request URL: {safe(request.path)}{advice}")
