"""The open sessions of a server: their number is limited, and at shutdown each is closed once its text is sent."""

from __future__ import annotations

import asyncio
import contextlib

from ...config import Config
from ...errors import TooManyRequests, Unavailable
from .session import Session


class Realtime:
    """One for each App. reserve, then add the session."""

    def __init__(self, config: Config) -> None:
        self._most = config.max_realtime_sessions
        self._most_of_client = max(1, self._most - self._most // 4)
        self._clients: dict[str, int] = {}
        self._sessions: set[Session] = set()
        self._stopping = False
        self._ended = asyncio.Event()  # there is no session
        self._ended.set()

    def reserve(self, client: str) -> None:
        """A place for a session of this client. Raises RequestError."""
        if self._stopping:
            raise Unavailable("the server is shutting down", code="shutting_down")
        mine = self._clients.get(client, 0)
        if sum(self._clients.values()) >= self._most or mine >= self._most_of_client:
            raise TooManyRequests("too many realtime sessions: --max_realtime_sessions", code="too_many_sessions")
        self._clients[client] = mine + 1

    def release(self, client: str) -> None:
        """Give the place back."""
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]

    def add(self, session: Session) -> None:
        """A session begins."""
        self._sessions.add(session)
        self._ended.clear()
        if self._stopping:
            session.stop()

    def remove(self, session: Session) -> None:
        """It has ended."""
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
