"""A web server on loopback that answers each path with given bytes, and records its requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


def ok(body: bytes, *headers: str, length: int | None = None, status: str = "200 OK") -> bytes:
    """Returns a complete response."""
    size = len(body) if length is None else length
    head = [f"HTTP/1.1 {status}", f"Content-Length: {size}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


@dataclass
class WebServer:
    """The server. `pages` has the bytes of the response by path; None means that there never is one.

    For paths in `stall` the connection stays open afterwards; for those in `drip` single bytes follow forever.
    """

    port: int = 0
    pages: dict[str, bytes | None] = field(default_factory=dict)
    stall: set[str] = field(default_factory=set)
    drip: set[str] = field(default_factory=set)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            request, *lines = head.split("\r\n")
            path = request.split(" ")[1]
            self.asked.append((path, dict(line.lower().split(": ", 1) for line in lines if line)))
            page = self.pages.get(path, ok(b"", status="404 Not Found"))
            if page is not None:
                writer.write(page)
                await writer.drain()
            while path in self.drip:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
            if page is None or path in self.stall:
                await reader.read()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(**pages: bytes | None) -> AsyncIterator[WebServer]:
    """Returns a server whose pages are named by keywords, without the leading "/"."""
    web = WebServer(pages={f"/{name}": page for name, page in pages.items()})
    server = await asyncio.start_server(web.serve, "127.0.0.1", 0)
    web.port = server.sockets[0].getsockname()[1]
    try:
        yield web
    finally:
        server.close()
        await asyncio.gather(*web.tasks)
