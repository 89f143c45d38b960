"""Options that bound what clients may use: connections, bodies, live sessions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from .options import Options, option

_limits = partial(option, group="limits")
_realtime = partial(option, group="realtime")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class LimitOptions(Options):
    """The limits that the server itself keeps; those of the engine are in EngineOptions."""

    # --- limits
    max_header_bytes: int = _limits(65536, "most bytes of the request line and headers; more: 431", low=1024)
    max_body_bytes: int = _limits(32 << 20, "most bytes of a request body; more: 413", low=1024)
    max_body_memory_mb: int = _limits(
        512, "MB for the bodies of all running requests together; further requests wait", low=1
    )
    max_body_values: int = _limits(
        1 << 18, "most values in a JSON body, counted by its commas, colons and brackets; more: 400", low=1 << 16
    )
    max_connections: int = _limits(
        1024,
        "most open connections; a further one closes the longest idle one, and is answered 503 if none is idle",
        low=1,
    )
    max_connections_per_client: int = _limits(
        0,
        "most open connections of one address, or of one IPv6 network of 64 bits; 0: three quarters of max_connections",
        low=0,
    )
    header_timeout_s: float = _limits(
        20.0, "seconds in which the headers of a request must arrive; later: 408", low=0.1
    )
    body_timeout_s: float = _limits(60.0, "seconds in which the body of a request must arrive; later: 408", low=0.1)
    keep_alive_timeout_s: float = _limits(75.0, "close a connection that has been idle for this many seconds", low=0.1)
    stream_stall_timeout_s: float = _limits(
        60.0, "cancel a request whose client has not read its response for this many seconds", low=0.1
    )
    request_timeout_s: float = _limits(0.0, "stop a generation after this many seconds; 0: no limit", low=0)
    drain_timeout_s: float = _limits(30.0, "seconds that running requests have to finish when the server stops", low=0)
    drain_delay_s: float = _limits(
        0.0, "seconds after a stop signal in which readiness is 503 and requests are still served", low=0
    )
    template_timeout_s: float = _limits(
        2.0, "CPU seconds that rendering a chat template may take; more: 400", low=0.05, high=600
    )
    max_prompts: int = _limits(128, "most prompts in one completions request; more: 400", low=1, high=4096)

    # --- realtime
    max_realtime_message_bytes: int = _realtime(
        1 << 20, "most bytes of one WebSocket message; more: the connection is closed with code 1009", low=1 << 12
    )
    max_realtime_session_s: float = _realtime(
        3600.0, "close a realtime session, or a WebSocket of /responses, after this many seconds", low=1
    )
