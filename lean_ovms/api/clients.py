"""Who sends a request: one name for each client, between which the engine's time is shared.

The peer's address, or behind a trusted proxy the address that X-Forwarded-For has for it. IPv6 addresses count by their
/64, of which one customer has them all. An API key of one client, not that of all clients, takes the place of the
address.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from ..config import Config
from ..errors import StartError
from ..types import Request

UNIX = "unix"
MAX_HOPS = 32
"""Addresses of X-Forwarded-For that are read, from its end."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Clients:
    """Names the client of each request. Raises StartError for --trusted_proxies that are no addresses."""

    def __init__(self, config: Config) -> None:
        names = [name.strip() for name in config.trusted_proxies.split(",") if name.strip()]
        self._all = "all" in names
        self._unix = self._all or UNIX in names
        self._networks = tuple(_network(name) for name in names if name not in ("all", UNIX))

    def identify(self, request: Request) -> str:
        """The client's name; "" where the transport does not know the peer."""
        return _by_host(self.source(request))

    def source(self, request: Request) -> str:
        """The peer as the transport names it, or the address, without a port, that a trusted proxy has for the client.

        For logs: of the header's text only an address gets into it.
        """
        peer = request.peer
        if not (self._unix or self._networks):
            return peer
        forwarded = request.headers.get("x-forwarded-for", "")
        if not forwarded or not self._trusted(peer):
            return peer
        for hop in reversed(forwarded.rsplit(",", MAX_HOPS)[-MAX_HOPS:]):
            address = address_in(hop)
            if address is None:
                break
            peer = str(address)
            if not self._trusted(peer):
                break
        return peer

    def forwarded_host(self, request: Request) -> str:
        """The host and port at which a trusted proxy was asked, of X-Forwarded-Host; "" if there is none.

        Not where all are trusted: then a page could send the header itself.
        """
        forwarded = request.headers.get("x-forwarded-host", "")
        if not forwarded or self._all or not self._trusted(request.peer):
            return ""
        return forwarded.rpartition(",")[2].strip()

    def _trusted(self, peer: str) -> bool:
        if self._all:
            return True
        address = address_in(peer)
        if address is None:
            return self._unix and peer == UNIX
        return any(address in network for network in self._networks)


def _network(name: str) -> Network:
    try:
        return ipaddress.ip_network(name, strict=False)
    except ValueError:
        raise StartError(f"--trusted_proxies: {name!r} is neither an address nor a network, unix or all") from None


@lru_cache(4096)
def _by_host(peer: str) -> str:
    """The name of a client with this address, the port left out."""
    address = address_in(peer)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address or peer)


@lru_cache(4096)
def address_in(peer: str) -> Address | None:
    """The address in "host", "host:port" or "[host]:port"; None if there is none. IPv4 inside IPv6 is IPv4."""
    host = peer.strip()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
