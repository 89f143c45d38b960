"""GET /: the page for browsers, to use the models and to look at the server.

Its files are in the folder web next to this module, and in the folders web of features with a panel; the page is
assembled from these. They are served without an API key, since they contain nothing of this server: the page asks the
API, with the key that its user enters. The Content-Security-Policy allows it to connect to this server only, to run
only these scripts, and to make no HTML of texts. `--web_page false` removes the page.
"""

from __future__ import annotations

import gzip
import hashlib
import json as json_text
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path

from ...api.fields import RouteDoc
from ...api.response import json
from ...api.services import Services
from ...errors import NotFound
from ...manifest import PanelRow
from ...observability.records import log_quietly
from ...types import Request, Response

FILES = Path(__file__).with_name("web")
INDEX = "index.html"
PANEL = "panel.html"
TABS, PANELS = "<!-- tabs of features -->", "<!-- panels of features -->"
"""The placeholders in the page for tabs and panels of features."""
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
    """A file of the page, ready to be served."""

    media_type: str
    """The value of the Content-Type header."""
    content: bytes
    """The content of the file."""
    compressed: bytes
    """The content compressed with gzip."""
    etag: str
    """The quoted hash of the content, for the ETag header."""


@RouteDoc("A page for browsers; name and version of the server for other clients")
async def handle_root(request: Request, services: Services) -> Response:
    return _send(request, index(services.config.composition.panels))


@RouteDoc("The endpoints of features that the page uses")
async def handle_actions(request: Request, services: Services) -> Response:
    log_quietly()
    config = services.config
    rows = [row for one in config.composition.features for row in one.page]
    offered = {row.action: row.path[1:] for row in rows if all(map(config.given, row.only_with))}
    return json(offered)


@RouteDoc("A file of the page", errors=(404,), answer="text/plain")
async def handle_file(request: Request, services: Services) -> Response:
    [name] = request.ids
    feature, _, rest = name.partition("/")
    owned = next((row for row in services.config.composition.panels if row.inside(".").name == feature), None)
    folder, inside = (FILES, name) if owned is None else (owned.inside("web"), rest)
    if inside not in names(folder):
        raise NotFound("there is no such file")
    log_quietly()
    return _send(request, read(folder / inside))


def _send(request: Request, file: WebFile) -> Response:
    headers = [*SAFETY, ("ETag", file.etag), ("Cache-Control", "no-cache"), ("Vary", "Accept, Accept-Encoding")]
    known = request.headers.get("if-none-match", "")
    if file.etag in known or known == "*":
        return Response(304, headers)
    headers.append(("Content-Type", f"{file.media_type}; charset=utf-8"))
    if _accepts_gzip(request.headers.get("accept-encoding", "")):
        return Response(200, [*headers, ("Content-Encoding", "gzip")], file.compressed)
    return Response(200, headers, file.content)


def _accepts_gzip(accepted: str) -> bool:
    """Returns whether an Accept-Encoding header names gzip with a weight other than 0 (RFC 9110 12.5.3)."""
    weights = {coding.strip(): weight.strip() for coding, _, weight in (x.partition(";") for x in accepted.split(","))}
    weight = weights.get("gzip")
    return weight == "" or bool(weight and weight.removeprefix("q=").strip("0."))


@cache
def names(folder: Path) -> frozenset[str]:
    """Returns the names of the page's files in a folder."""
    return frozenset(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.suffix in TYPES)


@cache
def read(path: Path) -> WebFile:
    """Returns a file of the page, read at its first use. A wheel contains a compressed copy of it (setup.py)."""
    copy = path.with_name(f"{path.name}.gz")
    return _file(path.suffix, path.read_bytes(), copy.read_bytes() if copy.is_file() else b"")


@cache
def index(panels: tuple[PanelRow, ...]) -> WebFile:
    """Returns the page's HTML with a tab for each view of these panels."""
    views: dict[str, list[PanelRow]] = {}
    for row in panels:
        views.setdefault(row.view, []).append(row)
    page = (FILES / INDEX).read_text("utf-8")
    page = page.replace(TABS, "\n    ".join(_tab(rows[0]) for rows in views.values()))
    page = page.replace(PANELS, "\n\n".join(_view(view, rows) for view, rows in views.items()))
    return _file(".html", page.encode(), b"")


def _tab(row: PanelRow) -> str:
    icon = f'<svg class="icon" aria-hidden="true"><use href="#icon-{row.icon}"/></svg>'
    return (
        f'<button id="tab-{row.view}" type="button" aria-pressed="false" hidden>{icon}<span>{row.title}</span></button>'
    )


def _view(view: str, rows: list[PanelRow]) -> str:
    return f'<main id="view-{view}" class="panels" hidden>\n{"".join(map(_panel, rows))}</main>'


def _panel(row: PanelRow) -> str:
    feature, tasks = row.inside(".").name, escape(json_text.dumps(dict(row.tasks)))
    inside = (row.inside("web") / PANEL).read_text("utf-8")
    return f'<div class="panel" data-feature="{feature}" data-tasks="{tasks}" hidden>\n{inside}</div>\n'


def _file(suffix: str, content: bytes, compressed: bytes) -> WebFile:
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return WebFile(TYPES[suffix], content, compressed or gzip.compress(content, mtime=0), etag)
