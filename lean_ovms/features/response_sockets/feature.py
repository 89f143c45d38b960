"""The manifest of responses over a WebSocket."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import Options, option
from ...manifest import EVERYWHERE, Feature, Route


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ResponseSocketOptions(Options):
    """The limit of WebSockets of responses."""

    max_response_websockets: int = option(64, "most open WebSockets of /responses; more: 429", group="realtime", low=1)


FEATURE = Feature(
    name="response_sockets",
    summary="OpenAI's Responses API over a WebSocket",
    title="OpenAI: responses over a WebSocket",
    reference="https://platform.openai.com/docs/guides/websocket-mode",
    needs=("responses", "websocket"),
    options=ResponseSocketOptions,
    routes=(Route("GET", "/responses", "api:handle", EVERYWHERE),),
)
