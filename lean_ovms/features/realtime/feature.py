"""The manifest of live transcription."""

from __future__ import annotations

from ...config.server import WebSocketOptions
from ...manifest import BASES, Feature, Metric, Route
from .options import RealtimeOptions

SESSIONS = "lean_ovms_realtime_sessions"
"""The gauge of open sessions."""

FEATURE = Feature(
    name="realtime",
    summary="transcribes what is said while it is said, over WebSockets",
    title="OpenAI, live audio",
    reference="https://platform.openai.com/docs/api-reference/realtime",
    needs=("speech",),
    options=RealtimeOptions,
    libraries=(WebSocketOptions,),
    routes=(Route("GET", "/realtime", "api.endpoint:handle", BASES, serves="speech"),),
    metrics=(Metric(SESSIONS, "gauge", "open sessions of realtime transcription", ()),),
)
