"""The open sessions of a server: their number is limited, and at shutdown each is closed once its text is sent."""

from __future__ import annotations

import asyncio
import contextlib

from ...config import Config
from ...errors import Unavailable
from ..websockets import Places
from .session import TranscriptionSession


class RealtimeService:
    """The sessions of one App. Call `reserve`, then `add` the session."""

    def __init__(self, config: Config) -> None:
        self._places = Places(config.max_realtime_sessions, "too many realtime sessions: --max_realtime_sessions")
        self._sessions: set[TranscriptionSession] = set()
        self._stopping = False
        self._ended = asyncio.Event()  # there is no session
        self._ended.set()

    def reserve(self, client: str) -> None:
        """Reserves a place for a session of this client. Raises RequestError."""
        if self._stopping:
            raise Unavailable("the server is shutting down", code="shutting_down")
        self._places.reserve(client)

    def release(self, client: str) -> None:
        """Gives the place back."""
        self._places.release(client)

    def add(self, session: TranscriptionSession) -> None:
        """Adds a session that begins."""
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
        """Closes all sessions once their text is sent, within timeout_s; the transport ends what is left."""
        self._stopping = True
        for session in self._sessions:
            session.stop()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout_s)

    async def close(self) -> None:
        """Refuses new sessions, and tells the open ones to stop."""
        self._stopping = True
        for session in self._sessions:
            session.stop()
