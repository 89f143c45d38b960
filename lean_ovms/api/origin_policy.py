"""Whether a request may run, by the page that sent it and by the name under which it reached the server.

CORS leaves to the browser what a page may read. The request has run by then, and some need no preflight: a POST without
a Content-Type, a WebSocket, a GET of an image. And a page whose name was made to point to this server (DNS rebinding)
is one of the server's own to the browser; only Host tells. So what a page may not do is refused here, before its body
is read. Clients that are no browsers send no Origin. The rules: docs/security.md.
"""

from __future__ import annotations

import contextlib
import re
import socket
from pathlib import Path

from ..config import Config
from ..errors import Forbidden
from ..manifest import Route
from ..observability.logging import safe
from ..types import Request
from .clients import Clients, address_in

UNREGISTRABLE = (".localhost", ".local", ".internal")
"""Ends of names that nobody can register, as of a name without a dot: no page of the web can have one."""
_HOST = re.compile(r"(\[[0-9a-f:.]*\]|[^:\[\], ]*)(?::[0-9]*)?")
"""An address or a name, and perhaps a port."""
OTHER_SITES = ("cross-site", "same-site")
"""Values of Sec-Fetch-Site for a page of another origin (https://www.w3.org/TR/fetch-metadata/#sec-fetch-site-header)."""


class OriginPolicy:
    """The rule for pages and host names. It knows the options and who is a proxy, and of a route what it declares."""

    def __init__(self, config: Config, clients: Clients, *, with_key: bool) -> None:
        """Makes the rule of a server.

        Args:
            config: the options.
            clients: tells who is a proxy.
            with_key: whether requests need an API key.
        """
        self._config = config
        self._clients = clients
        self._without_key = not with_key
        self._every_origin = "*" in config.origins
        self._hosts = {*config.hosts, *machine_names()}
        self._checks_hosts = bool(config.hosts) or (self._without_key and not self._every_origin)

    def check(self, route: Route, request: Request) -> None:
        """Raises Forbidden."""
        exposed = route.changes and self._without_key
        checks_host = exposed or (self._checks_hosts and not route.vital)
        checks_page = exposed or not self._every_origin
        if not (checks_host or checks_page):
            return
        forwarded = self._clients.forwarded_host(request)
        host = (forwarded or request.headers.get("host", "")).lower()
        if checks_host and not self._knows(host) and (self._config.hosts or not forwarded):
            message = f"{safe(host)} is not known as a name of this server: --allowed_hosts"
            raise Forbidden(message, code="host_not_allowed")
        if checks_page and self._is_foreign(route, request, host):
            page = safe(request.headers.get("origin", "other sites"))
            way = "--allowed_origins, or an API key" if self._every_origin else "--allowed_origins"
            raise Forbidden(f"pages of {page} may not do this on this server: {way}", code="origin_not_allowed")

    def _knows(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if "*" in self._hosts or found is None:
            return "*" in self._hosts
        name = found[1].removesuffix(".")
        known = "." not in name or name in self._hosts or name.endswith(UNREGISTRABLE)
        return known or address_in(name) is not None

    def _is_foreign(self, route: Route, request: Request, host: str) -> bool:
        """Whether a page has sent it that is neither allowed by its origin nor the server's own.

        A link from another site to the pages of the server is no such request.
        """
        origin = request.headers.get("origin", "")
        if not origin:
            return route.auth != "open" and request.headers.get("sec-fetch-site") in OTHER_SITES
        scheme, _, own = origin.partition("://")
        port = ":443" if scheme == "https" else ":80"
        return own != host.removesuffix(port) and not self._config.allows_origin(origin)


def machine_names() -> set[str]:
    """The machine's name, and those that /etc/hosts has beside it; a DNS query could delay the start."""
    name = socket.gethostname().lower()
    names = {name}
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in Path("/etc/hosts").read_text("utf-8").lower().splitlines():
            _, *found = line.partition("#")[0].split() or [""]
            names.update(found if name in found else [])
    return names
