"""The open sessions of a server: their number is limited, and at shutdown each is closed once its text is sent."""

from __future__ import annotations

import asyncio
import contextlib

from ...config import Config
from ...errors import Unavailable
from ..websockets import Places
from .session import TranscriptionSession


class RealtimeService:
    """One for each App. reserve, then add the session."""

    def __init__(self, config: Config) -> None:
        self._places = Places(config.max_realtime_sessions, "too many realtime sessions: --max_realtime_sessions")
        self._sessions: set[TranscriptionSession] = set()
        self._stopping = False
        self._ended = asyncio.Event()  # there is no session
        self._ended.set()

    def reserve(self, client: str) -> None:
        """A place for a session of this client. Raises RequestError."""
        if self._stopping:
            raise Unavailable("the server is shutting down", code="shutting_down")
        self._places.reserve(client)

    def release(self, client: str) -> None:
        """Give the place back."""
        self._places.release(client)

    def add(self, session: TranscriptionSession) -> None:
        """A session begins."""
        self._sessions.add(session)
        self._ended.clear()
        if self._stopping:
            session.stop()

    def remove(self, session: TranscriptionSession) -> None:
        """Removes a session that has ended."""
        self._sessions.discard(session)
        if not self._sessions:
            self._ended.set()

    async def drain(self, timeout_s: float) -> None:
        """Close all sessions with their text, within timeout_s; the transport ends what is left."""
        self._stopping = True
        for session in self._sessions:
            session.stop()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout_s)

    async def close(self) -> None:
        """Take no more."""
        self._stopping = True
        for session in self._sessions:
            session.stop()
