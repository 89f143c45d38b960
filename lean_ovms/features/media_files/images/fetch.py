"""Fetches images from web servers that the operator has listed, with a small HTTP client of its own.

The URL is parsed once (source.py), its host is resolved once, every found address is checked, and the connection goes
to one of them. Redirects are followed only if the operator allows them, and each is checked like the first URL. There
are no proxies, cookies, credentials or compression, and one limit of size and one of time for everything.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from concurrent.futures import Future
from functools import cached_property
from urllib.parse import urljoin

import h11

from ....errors import BadRequest, Unavailable
from ..feature import ImageFileOptions
from .allowed_hosts import Address, AllowedHosts, parse_address
from .source import Url, check_size, parse_url

log = logging.getLogger("lean_ovms.media")

NOT_ALLOWED = "Given url does not match any allowed domain from allowed_media_domains"
FAILED = "Image downloading failed"
MAX_REDIRECTS = 3
RECEIVE_BYTES = 1 << 16
HEADERS = [("User-Agent", "lean_ovms"), ("Accept-Encoding", "identity"), ("Connection", "close")]
_REDIRECTS = (301, 302, 303, 307, 308)
MAX_LOOKUPS = 64
"""The most names that are looked up at once, each in a thread, which may outlast its request."""
_lookups = threading.BoundedSemaphore(MAX_LOOKUPS)


class HttpFetcher:
    """Fetches images or videos; `media` names which in errors. Raises StartError for an invalid list of hosts."""

    def __init__(self, options: ImageFileOptions, media: str, max_bytes: int, timeout_s: float) -> None:
        self._hosts = AllowedHosts(options.allowed_media_domains)
        self._headers = [*HEADERS, ("Accept", f"{media}/*")]
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._redirects = MAX_REDIRECTS if options.media_url_allow_redirects else 0

    async def fetch(self, url: Url) -> bytes:
        """Fetches a URL, and returns the body of a response with status 200. Raises BadRequest and Unavailable."""
        try:
            return await asyncio.wait_for(self._follow(url), self._timeout_s)
        except asyncio.TimeoutError:
            raise BadRequest(f"{FAILED}: it took longer than {self._timeout_s:g} s") from None
        except (OSError, ssl.SSLError, h11.ProtocolError, EOFError, ValueError) as error:
            # ValueError: the name cannot be looked up (a label of more than 63 letters), or Location is not a URL.
            log.info("an image from %s could not be fetched: %s", url.host, error)
            raise BadRequest(f"{FAILED}: its server cannot be reached, or sent an invalid answer") from None

    async def _follow(self, url: Url) -> bytes:
        for _ in range(self._redirects + 1):
            found = await self._get(url)
            if isinstance(found, bytes):
                return found
            if url.secure and not found.secure:
                raise BadRequest(f"{FAILED}: it is redirected from https to http")
            url = found
        raise BadRequest(
            f"{FAILED}: {'it is redirected too often' if self._redirects else 'it is redirected, which is not allowed'}"
        )

    async def _get(self, url: Url) -> bytes | Url:
        """Sends one request, and returns the body, or the URL of a redirect."""
        if not self._hosts.allows_host(url.host):
            raise BadRequest(NOT_ALLOWED)
        reader, writer = await self._connect(url, await self._resolve(url))
        try:
            return await self._download(url, reader, writer)
        finally:
            writer.transport.abort()

    async def _resolve(self, url: Url) -> list[str]:
        """Resolves the host, and returns its addresses. Raises BadRequest if one of them is not allowed."""
        literal = parse_address(url.host)
        if literal is not None:
            self._check([literal])
            return [str(literal)]
        found = await _look_up(url.host)
        names = list(dict.fromkeys(name.partition("%")[0] for name in found))
        self._check([address for name in names if (address := parse_address(name)) is not None])
        return names

    def _check(self, addresses: list[Address]) -> None:
        if not addresses or not all(map(self._hosts.allows_address, addresses)):
            raise BadRequest(f"{NOT_ALLOWED}: its host has an address that is not public")

    async def _connect(self, url: Url, addresses: list[str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for address in addresses[:-1]:
            try:
                return await self._open(url, address)
            except OSError:
                continue
        return await self._open(url, addresses[-1])

    async def _open(self, url: Url, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not url.secure:
            return await asyncio.open_connection(address, url.port)
        return await asyncio.open_connection(address, url.port, ssl=self._tls, server_hostname=url.host)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    async def _download(self, url: Url, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | Url:
        """Sends one request on a new connection, and returns the body, or the URL of a redirect."""
        http = h11.Connection(h11.CLIENT)
        request = h11.Request(method="GET", target=url.target, headers=[("Host", url.authority), *self._headers])
        writer.write((http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b""))
        await writer.drain()
        answer = await _event(http, reader)
        while isinstance(answer, h11.InformationalResponse):
            answer = await _event(http, reader)
        if not isinstance(answer, h11.Response):
            raise BadRequest(f"{FAILED}: its server did not answer")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
        if answer.status_code in _REDIRECTS and "location" in headers:
            here = f"{'https' if url.secure else 'http'}://{url.authority}{url.target}"
            return parse_url(urljoin(here, headers["location"]))
        if answer.status_code != 200:
            raise BadRequest(f"{FAILED}: its server answered with status {answer.status_code}")
        if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise BadRequest(f"{FAILED}: its server sent it compressed")
        check_size(int(headers.get("content-length", "0")), self._max_bytes)
        data = bytearray()
        while isinstance(event := await _event(http, reader), h11.Data):
            data += event.data
            check_size(len(data), self._max_bytes)
        return bytes(data)


async def _look_up(host: str) -> list[str]:
    """Returns the addresses of a name. Raises OSError, UnicodeError, and Unavailable if too many are looked up.

    A lookup cannot be cancelled, and may take as long as the name's own server likes. So it has a thread of its own:
    the threads of the event loop, which also read files and keys, would all wait.
    """
    if not _lookups.acquire(blocking=False):
        raise Unavailable("too many names are being looked up; please try again later", code="too_many_lookups")
    found: Future[list[str]] = Future()

    def run() -> None:
        try:
            found.set_result([str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)])
        except Exception as error:  # it is raised where the result is awaited
            found.set_exception(error)
        finally:
            _lookups.release()

    found.set_running_or_notify_cancel()
    threading.Thread(target=run, name="lookup", daemon=True).start()
    return await asyncio.wrap_future(found)


async def _event(http: h11.Connection, reader: asyncio.StreamReader) -> object:
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await reader.read(RECEIVE_BYTES))
    return event
