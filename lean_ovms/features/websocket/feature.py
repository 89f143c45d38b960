"""The manifest of WebSockets."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import Options, option
from ...manifest import OTHER_PROTOCOL, Feature, PartRow


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class WebSocketOptions(Options):
    """The limits of WebSockets, which apply to each feature that has any."""

    max_realtime_session_s: float = option(
        3600.0,
        "close a realtime session, or a WebSocket of /responses, after this many seconds",
        group="realtime",
        low=1,
    )


FEATURE = Feature(
    name="websocket",
    summary="opens WebSockets for other features",
    extra="realtime",
    packages=("websockets",),
    options=WebSocketOptions,
    parts=(PartRow(seam=OTHER_PROTOCOL, make="http11:WEBSOCKET"),),
)
