"""App.handle(Request) -> Response: route, authorise, catch errors, write the access line. Knows no sockets.

Every door calls `handle` and nothing else. Handlers raise RequestError; this is the one place where an error becomes
an answer, and one of the three places where any exception may be caught.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from ..config import Config
from ..errors import MethodNotAllowed, ModelNotFound, NotFound, RequestError, Unauthorized
from ..media.images.loader import ImageLoader
from ..models.text_model import Model
from ..observability.logging import Access, safe
from ..observability.metrics import Metrics, Prometheus
from ..observability.records import CLIENT_LEFT, RequestRecord, current
from ..types import ByteStream, Json, Request, Response
from ..util.concurrency import Offload
from .fields import json_body
from .openai.responses.service import ResponseService
from .response import is_safe_id, model_name
from .router import Route, Table, collect

logger = logging.getLogger("lean_ovms.access")
errors_logger = logging.getLogger("lean_ovms.api")

BRIEF_BYTES = 32768
"""A body below this size is read on the event loop: a thousand messages, 3 ms at most (2026-11)."""
MOST_ASIDE = 4
"""Memory for large bodies that wait to be read, in bodies of the largest size."""

PREFLIGHT_S = "600"
"""Seconds for which a browser need not ask again (Starlette's default; browsers' own is 5)."""
_NAMES = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+(?:, *[-!#$%&'*+.^_`|~0-9A-Za-z]+)*")

T = TypeVar("T")


class ModelManager(Protocol):
    """Who brings the set of models to what the configuration wishes (deployment.fleet)."""

    async def load(self) -> None: ...

    async def reload(self) -> bool: ...

    async def watch(self, period_s: float) -> None: ...

    async def stop(self) -> None: ...


class NoModelManager:
    """The keeper of models that somebody else looks after."""

    async def load(self) -> None:
        """They are loaded."""

    async def reload(self) -> bool:
        """They stay."""
        return True

    async def watch(self, period_s: float) -> None:
        """They stay."""

    async def stop(self) -> None:
        """They go on."""


class App:
    """The API over a set of models, which its keeper may change while it serves."""

    def __init__(self, config: Config, models: list[Model], metrics: Metrics | None = None) -> None:
        self.config = config
        self.aside = Offload(MOST_ASIDE * config.max_body_bytes)
        self.metrics = metrics or (Prometheus(config.metrics_list) if config.metrics_enable else Metrics())
        self.models: dict[str, Model] = {}
        self.unloaded: dict[str, str] = {}  # names no longer served: "UNLOADING" or "END"
        self.keeper: ModelManager = NoModelManager()
        for model in models:
            self.install(model)
        self.draining = False
        self._watched = config.access_log or self.metrics.enabled
        self._open: set[RequestRecord] = set()
        self.responses = ResponseService(config)
        self.gallery = ImageLoader(config)
        self._table = Table(collect())
        self._key = config.api_key.encode()
        self._cors = config.cors_headers()
        self._cors_of = {origin: config.cors_headers(origin) for origin in config.origins}

    def install(self, model: Model) -> None:
        """Serve model under its name, in the place of another one perhaps."""
        for one in model.with_adapters:
            one.metrics, one.aside = self.metrics, self.aside
        self.models[model.name] = model
        self.unloaded.pop(model.name, None)

    def reorder(self, names: list[str]) -> None:
        """The order of the model list; names that are not served do not matter."""
        self.models = {name: self.models[name] for name in names if name in self.models} | self.models

    @property
    def served(self) -> list[Model]:
        """All models, each with its adapters after it."""
        return [one for model in self.models.values() for one in model.with_adapters]

    def model(self, name: str) -> Model:
        """The model of that name. Raises ModelNotFound."""
        model = self.models.get(name) or next((one for one in self.served if one.name == name), None)
        if model is None:
            known = ", ".join(one.name for one in self.served)
            raise ModelNotFound(f"The model {safe(name)!r} does not exist; served: {known}", param="model")
        if note := current.get():
            note.model = model.name
        return model

    def default_model(self, values: Json) -> Model:
        """The model that is named, or else the only one. Raises RequestError.

        For what vLLM alone has, whose clients leave it out; OVMS and OpenAI want a name where text is generated.
        """
        alone = len(self.models) == 1 and not values["model"]
        return self.model(next(iter(self.models)) if alone else model_name(values))

    async def parse_body(self, request: Request, read: Callable[[Json, App], T]) -> T:
        """What `read` makes of the request's JSON body; a large one is read beside the loop. Raises RequestError."""
        size = len(request.body)
        most = 0 if size < BRIEF_BYTES else self.config.max_body_values
        return await self.aside.run(size, lambda: read(json_body(request, most), self), brief=BRIEF_BYTES)

    async def handle(self, request: Request) -> Response:
        """The answer to a request; errors are answers too."""
        note = RequestRecord(_request_id(request), request.method, request.path, request.peer, time.monotonic())
        if self._watched:
            self._open.add(note)
        token = current.set(note)
        try:
            response = await self._answer(request, note)
        except BaseException:  # the door cancels when the client has left
            note.status = CLIENT_LEFT
            if self._watched:
                self._ended(note)
            raise
        finally:
            current.reset(token)
        response.headers += self._cors_of.get(request.headers.get("origin", ""), self._cors)
        response.headers.append(("X-Request-Id", note.request_id))
        if not self._watched:
            return response
        return _Observed(response, note, self._ended, whole=request.method == "HEAD")

    async def _answer(self, request: Request, note: RequestRecord) -> Response:
        try:
            return await self._dispatch(request, note)
        except RequestError as error:
            note.error = error.code or error.kind
            return _error(error)
        except Exception:
            errors_logger.exception("%s %s failed (id %s)", request.method, safe(request.path), note.request_id)
            note.error = "internal_error"
            return _error(_internal())

    def in_flight(self, model: str) -> int:
        """Exchanges about a model that are not over."""
        return sum(note.model == model for note in self._open)

    def _ended(self, note: RequestRecord) -> None:
        """The door has closed the response, or will get none: the access line, the metrics."""
        self._open.discard(note)
        note.seconds = time.monotonic() - note.started
        if self.config.access_log:
            logger.info(Access(note))
        self.metrics.exchange(note)

    async def _dispatch(self, request: Request, note: RequestRecord) -> Response:
        if request.method == "OPTIONS":
            return Response(200, self._preflight(request))  # on any path, as in OVMS
        route = self._route(request)
        note.route = route.path
        self._authorise(route, request)
        return await route.handle(request, self)

    def _preflight(self, request: Request) -> list[tuple[str, str]]:
        """What a browser is told besides before it sends a page's request to another origin.

        "*" does not cover Authorization, which is in every request of a client that was given a key; nor anything at
        all where credentials are allowed (https://fetch.spec.whatwg.org/#cors-preflight-fetch). So where everything
        is allowed, what is asked for is allowed by its name.
        """
        headers = [("Access-Control-Max-Age", PREFLIGHT_S)]
        for question, answer, allowed in (
            ("access-control-request-headers", "Access-Control-Allow-Headers", self.config.allowed_headers),
            ("access-control-request-method", "Access-Control-Allow-Methods", self.config.allowed_methods),
        ):
            asked = request.headers.get(question, "")
            if allowed == "*" and _NAMES.fullmatch(asked):
                headers.append((answer, asked))
        return headers

    def _route(self, request: Request) -> Route:
        methods = self._table.methods(request.path)
        route = methods.get("GET" if request.method == "HEAD" else request.method)
        if route is not None:
            return route
        if methods:
            allow = ", ".join(methods)
            raise MethodNotAllowed(f"{safe(request.path)} answers {allow}, not {safe(request.method)}", allow=allow)
        near = self._table.near(request.path)
        advice = f"did you mean {near}?" if near else "/docs says what is served"
        raise NotFound(f"Invalid request URL: {safe(request.path)}; {advice}")

    def _authorise(self, route: Route, request: Request) -> None:
        if not self._key or route.guard == "open" or (route.guard == "models" and not self.config.protect_models):
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("latin-1", "replace"), self._key):
            raise Unauthorized("Unauthorized request due to invalid or missing api-key")


class _Observed(Response):
    """A response that reports when the door closes it, so that a stream's time is the whole of it."""

    __slots__ = ("_ended", "_note")

    def __init__(
        self, response: Response, note: RequestRecord, ended: Callable[[RequestRecord], None], *, whole: bool
    ) -> None:
        """whole: the client takes no body."""
        body = response.body
        super().__init__(response.status, response.headers, body, response.close)
        self._note = note
        self._ended = ended
        note.status = response.status
        if isinstance(body, bytes):
            note.bytes, note.pieces = len(body), 1
        elif not whole:
            note.status = CLIENT_LEFT  # until the last piece is asked for
            self.body = _Counted(body, note, response.status)

    async def aclose(self) -> None:
        try:
            await Response.aclose(self)
        finally:
            self._ended(self._note)


class _Counted:
    """A ByteStream that notes what of it was taken."""

    __slots__ = ("_body", "_next", "_note", "_status")

    def __init__(self, body: ByteStream, note: RequestRecord, status: int) -> None:
        self._body = body
        self._next = aiter(body).__anext__
        self._note = note
        self._status = status

    def __aiter__(self) -> _Counted:
        return self

    async def __anext__(self) -> bytes:
        try:
            data = await self._next()
        except StopAsyncIteration:
            self._note.status = self._status
            raise
        self._note.bytes += len(data)
        self._note.pieces += 1
        return data

    async def aclose(self) -> None:
        await self._body.aclose()


def _error(error: RequestError) -> Response:
    return Response(error.status, [("Content-Type", "application/json"), *error.headers()], error.to_bytes())


def _internal() -> RequestError:
    error = RequestError("internal error", code="internal_error")
    error.status, error.kind = 500, "server_error"
    return error


def _request_id(request: Request) -> str:
    """The client's X-Request-Id if it is harmless in a header and a log line, else one of our own."""
    given = request.headers.get("x-request-id", "")
    return given if is_safe_id(given) else os.urandom(16).hex()
