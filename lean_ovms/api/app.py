"""App.handle(Request) -> Response: route, authorise, catch errors, write the access line. Knows no sockets.

Every door calls `handle` and nothing else. Handlers raise RequestError; this is the one place where an error becomes
an answer, and one of the three places where any exception may be caught.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..config import Config
from ..errors import MethodNotAllowed, ModelNotFound, NotFound, RequestError, Unauthorized
from ..log import safe
from ..metrics import Metrics, Prometheus
from ..model import Model
from ..shapes import Request, Response
from .responses.desk import Desk
from .routes import Route, Table, collect

logger = logging.getLogger("lean_ovms.access")
errors_logger = logging.getLogger("lean_ovms.api")

MAX_REQUEST_ID = 128


class App:
    """The API over a set of models, which may change while it serves.

    reload: reads the configuration again and changes the set; None for a set that somebody else looks after.
    """

    def __init__(self, config: Config, models: list[Model], metrics: Metrics | None = None) -> None:
        self.config = config
        self.metrics = metrics or (Prometheus() if config.metrics_enable else Metrics())
        self.models: dict[str, Model] = {}
        self.withdrawn: dict[str, str] = {}  # names no longer served: "UNLOADING" or "END"
        self.reload: Callable[[], Awaitable[bool]] | None = None
        for model in models:
            self.install(model)
        self.draining = False
        self.responses = Desk(config)
        self._table = Table(collect())
        self._key = config.api_key.encode()
        self._cors = config.cors_headers

    def install(self, model: Model) -> None:
        """Serve model under its name, in the place of another one perhaps."""
        model.metrics = self.metrics
        self.models[model.name] = model
        self.withdrawn.pop(model.name, None)

    def arrange(self, names: list[str]) -> None:
        """The order of the model list; names that are not served do not matter."""
        self.models = {name: self.models[name] for name in names if name in self.models} | self.models

    def model(self, name: str) -> Model:
        """The model of that name. Raises ModelNotFound."""
        try:
            return self.models[name]
        except KeyError:
            known = ", ".join(self.models)
            raise ModelNotFound(f"The model {safe(name)!r} does not exist; served: {known}", param="model") from None

    async def handle(self, request: Request) -> Response:
        """The answer to a request; errors are answers too."""
        started = time.monotonic()
        request_id = _request_id(request)
        try:
            response = await self._dispatch(request)
        except RequestError as error:
            response = _error(error)
        except Exception:
            errors_logger.exception("%s %s failed", request.method, safe(request.path))
            response = _error(_internal())
        response.headers += self._cors
        response.headers.append(("X-Request-Id", request_id))
        if self.config.access_log or self.metrics.enabled:
            return _Observed(response, Exchange(self, request, request_id, started))
        return response

    def ended(self, exchange: Exchange, status: int) -> None:
        """The door has closed the response: the access line, the metrics."""
        request, seconds = exchange.request, time.monotonic() - exchange.started
        if self.config.access_log:
            form = "%s %s %s %d %.1f ms %s"
            method, path = safe(request.method), safe(request.path)
            logger.info(form, request.peer or "-", method, path, status, seconds * 1e3, exchange.request_id)
        if self.metrics.enabled:
            route = self._table.methods(request.path).get(request.method)
            known = (route.path, route.method) if route is not None else ("other", "other")
            self.metrics.exchange(*known, status, seconds)

    async def _dispatch(self, request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(200)  # CORS preflight, on any path as in OVMS
        route = self._route(request)
        self._authorise(route, request)
        return await route.handle(request, self)

    def _route(self, request: Request) -> Route:
        methods = self._table.methods(request.path)
        route = methods.get("GET" if request.method == "HEAD" else request.method)
        if route is not None:
            return route
        if methods:
            allow = ", ".join(methods)
            raise MethodNotAllowed(f"{safe(request.path)} answers {allow}, not {safe(request.method)}", allow=allow)
        raise NotFound(f"Invalid request URL: {safe(request.path)}")

    def _authorise(self, route: Route, request: Request) -> None:
        if not self._key or route.guard == "open" or (route.guard == "models" and not self.config.protect_models):
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("latin-1", "replace"), self._key):
            raise Unauthorized("Unauthorized request due to invalid or missing api-key")


@dataclass(frozen=True, slots=True)
class Exchange:
    """What is remembered of a request until its response is closed."""

    app: App
    request: Request
    request_id: str
    started: float


class _Observed(Response):
    """A response that reports when the door closes it, so that a stream's time is the whole of it."""

    __slots__ = ("_exchange",)

    def __init__(self, response: Response, exchange: Exchange) -> None:
        super().__init__(response.status, response.headers, response.body, response.close)
        self._exchange = exchange

    async def aclose(self) -> None:
        try:
            await Response.aclose(self)
        finally:
            self._exchange.app.ended(self._exchange, self.status)


def _error(error: RequestError) -> Response:
    return Response(error.status, [("Content-Type", "application/json"), *error.headers()], error.to_bytes())


def _internal() -> RequestError:
    error = RequestError("internal error", code="internal_error")
    error.status, error.kind = 500, "server_error"
    return error


def _request_id(request: Request) -> str:
    """The client's X-Request-Id if it is harmless in a header and a log line, else one of our own."""
    given = request.headers.get("x-request-id", "")
    if given and len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable():
        return given
    return secrets.token_hex(16)
