"""The manifest of live transcription."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...config.options import Options, option
from ...manifest import BASES, Feature, Metric, Route

_realtime = partial(option, group="realtime")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RealtimeOptions(Options):
    """The limits of the sessions of /realtime, and of what is sent to them."""

    max_realtime_message_bytes: int = _realtime(
        1 << 20,
        "maximum size of a WebSocket message in bytes; a larger one closes the connection with code 1009",
        low=1 << 12,
    )
    max_realtime_sessions: int = _realtime(
        16, "maximum number of open sessions of /realtime; more are rejected with 429", low=1
    )
    realtime_ahead_s: float = _realtime(
        30.0,
        "seconds of audio that wait for the engine, which takes up to a minute; the rest is read later",
        low=1,
    )
    realtime_idle_timeout_s: float = _realtime(60.0, "close a session after this many seconds without a message", low=1)
    realtime_partials: bool = _realtime(
        True, "before an utterance ends, send the part of its text that will not change"
    )


SESSIONS = "lean_ovms_realtime_sessions"
"""The name of the gauge of open sessions."""

FEATURE = Feature(
    name="realtime",
    summary="transcribes live speech over WebSockets",
    title="OpenAI, live audio",
    reference="https://platform.openai.com/docs/api-reference/realtime",
    needs=("media_files", "speech", "websocket"),
    options=RealtimeOptions,
    routes=(Route("GET", "/realtime", "api.endpoint:handle", BASES, serves="speech"),),
    metrics=(Metric(SESSIONS, "gauge", "open sessions of realtime transcription", ()),),
)
