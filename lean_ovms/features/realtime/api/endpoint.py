"""GET …/realtime: a WebSocket that transcribes the audio sent to it.

It serves https://platform.openai.com/docs/api-reference/realtime and vLLM's /v1/realtime on one path. OpenAI's dialect
is used with `intent=transcription` or `model` in the URL, or if the first session.update has a session; otherwise
vLLM's.
"""

from __future__ import annotations

from ....api.fields import Field, FieldSet, RouteDoc
from ....api.queries import read_query
from ....api.response import new_id, now
from ....api.services import Services
from ....config import Config
from ....errors import NotFound
from ....types import Json, Request, Response
from ...speech.model import SpeechModel
from ...websocket.endpoint import OpenWebSockets, no_upgrade
from ...websocket.handshake import offered
from ...websocket.types import Close, WebSocket
from ..feature import SESSIONS, RealtimeOptions
from .openai import OpenAi
from .session import Dialect, TranscriptionSession
from .vllm import Vllm

SUBPROTOCOL = "realtime"
QUERY = FieldSet((
    Field("intent", "string", "transcription for OpenAI's dialect of events"),
    Field("model", "string", "name of the model; optional if only one transcribes speech"),
))  # fmt: skip


class RealtimeService(OpenWebSockets[TranscriptionSession]):
    """The open transcription sessions of a server. At shutdown each is closed after its text was sent."""

    def __init__(self, config: Config) -> None:
        most = config.of(RealtimeOptions).max_realtime_sessions
        super().__init__(most, "too many realtime sessions are open (--max_realtime_sessions)")

    async def close(self) -> None:
        await super().close()
        for session in self.sessions:
            session.stop()


@RouteDoc("A transcription session over a WebSocket", query=QUERY, errors=(404, 426, 429, 501), upgrade=True)
async def handle(request: Request, services: Services) -> Response:
    if not request.upgrade:
        raise no_upgrade(request)
    query = read_query(QUERY, request.query)
    name = await services.when_known(lambda: chosen_model(services, query["model"] or ""))
    decided = query["intent"] == "transcription"
    dialect: type[Dialect] = OpenAi if decided or query["model"] else Vllm
    service = services.get(RealtimeService)

    async def serve(websocket: WebSocket) -> Close:
        session = TranscriptionSession(services, websocket, dialect, name, None if decided else dialect_of)
        services.metrics.change(SESSIONS, 1)
        try:
            with service.opened(session):
                if service.stopping.is_set():
                    session.stop()
                # The first event is the same for both dialects, because it is sent before the client sends anything.
                created = {"id": session.id, "created": now(), "session": session.described()}
                await session.send({"type": "session.created", "event_id": new_id("event"), **created})
                return await session.run()
        finally:
            services.metrics.change(SESSIONS, -1)

    return service.upgrade(
        serve,
        subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered(request) else "",
        max_message_bytes=services.config.of(RealtimeOptions).max_realtime_message_bytes,
    )


def dialect_of(event: Json) -> type[Dialect] | None:
    """Returns OpenAI's dialect for an event with a session, as only its session.update has one; None for others."""
    if event["type"] != "session.update":
        return None
    return OpenAi if event.get("session") is not None else Vllm


def chosen_model(services: Services, name: str) -> str:
    """Returns the model of the URL, or the only one, if it is ready; "" if there are several. Raises RequestError."""
    registry = services.registry
    if name:
        return registry.get(name, SpeechModel).require_ready().name
    speech = [model for model in registry.visible.values() if isinstance(model, SpeechModel)]
    if not speech:
        if only := registry.default_of(SpeechModel):
            registry.get(only, SpeechModel)  # raises an error that says what the model is for
        raise NotFound("this server has no model that transcribes speech", code="model_not_found")
    return registry.get(speech[0].name, SpeechModel).require_ready().name if len(speech) == 1 else ""
