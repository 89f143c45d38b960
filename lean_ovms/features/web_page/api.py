"""GET /: a page to talk to the models and to look at the server, for browsers.

Its files are in the folder web beside this file. They are served without the API key and hold nothing of this server:
the page asks the API, with the key that its user enters. The Content-Security-Policy lets it connect to this server
only, run no script but these files, and make no HTML of text. `--web_page false` takes the page away.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...api.fields import RouteDoc
from ...api.response import json
from ...api.services import Services
from ...errors import NotFound
from ...observability.records import log_quietly
from ...types import Request, Response

FILES = Path(__file__).with_name("web")
INDEX = "index.html"
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
SAFETY = [
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
]


@dataclass(frozen=True, slots=True)
class WebFile:
    """A file of the page."""

    media_type: str
    """The value of Content-Type."""
    content: bytes
    """The bytes of the file."""
    compressed: bytes
    """The same, compressed by gzip."""
    etag: str
    """The quoted hash of the content, for ETag."""


@RouteDoc("A page for browsers; name and version of the server for other clients")
async def handle_root(request: Request, services: Services) -> Response:
    return _send(request, INDEX)


@RouteDoc("What the page can do by endpoints of features, with their paths")
async def handle_actions(request: Request, services: Services) -> Response:
    log_quietly()
    config = services.config
    rows = config.composition.page_rows
    offered = {row.action: row.path[1:] for row in rows if all(map(config.given, row.only_with))}
    return json(offered)


@RouteDoc("A file of the page", errors=(404,), answer="text/plain")
async def handle_file(request: Request, services: Services) -> Response:
    [name] = request.ids
    if name not in names():
        raise NotFound("there is no such file")
    log_quietly()
    return _send(request, name)


def _send(request: Request, name: str) -> Response:
    file = read(name)
    headers = [*SAFETY, ("ETag", file.etag), ("Cache-Control", "no-cache"), ("Vary", "Accept, Accept-Encoding")]
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(304, headers)
    headers.append(("Content-Type", f"{file.media_type}; charset=utf-8"))
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(200, [*headers, ("Content-Encoding", "gzip")], file.compressed)
    return Response(200, headers, file.content)


@cache
def names() -> frozenset[str]:
    """The files of the page."""
    return frozenset(path.relative_to(FILES).as_posix() for path in FILES.rglob("*") if path.suffix in TYPES)


@cache
def read(name: str) -> WebFile:
    """A file of the page, read when it is first asked for. A wheel has a compressed copy beside it (setup.py)."""
    content, copy = (FILES / name).read_bytes(), FILES / f"{name}.gz"
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    compressed = copy.read_bytes() if copy.is_file() else gzip.compress(content, mtime=0)
    return WebFile(TYPES[Path(name).suffix], content, compressed, etag)
