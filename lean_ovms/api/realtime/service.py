"""The open transcription sessions of a server: at shutdown each is closed once its text is sent."""

from __future__ import annotations

from ...config import Config
from ..websockets import OpenWebSockets
from .session import TranscriptionSession


class RealtimeService(OpenWebSockets[TranscriptionSession]):
    """The sessions of one App."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.max_realtime_sessions, "too many realtime sessions: --max_realtime_sessions")

    async def close(self) -> None:
        await super().close()
        for session in self.sessions:
            session.stop()
