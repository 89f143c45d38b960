"""Which hosts and addresses images may be fetched from. Pure: resolves and connects nothing.

A host must be listed by name. Whatever it resolves to must be an address of the public internet, unless that address
is listed itself: names can point anywhere, also to this machine, its neighbours, or a cloud's metadata service.
"""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv6Address

from ...errors import StartError

Address = IPv4Address | IPv6Address
ALL = "all"
_GLOBAL = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_SPECIAL = (ipaddress.IPv4Network("192.0.0.0/24"), ipaddress.IPv4Network("192.88.99.0/24"))
"""Reserved for protocols (a cloud has its metadata service there) and for relays; not every Python says so."""
_TRANSLATED = (ipaddress.IPv6Network("2002::/16"), ipaddress.IPv6Network("2001::/32"))
"""6to4 and Teredo: an IPv4 address inside, which a relay would reach for us."""


class Hosts:
    """--allowed_media_domains: names, *.name for its subdomains, addresses, networks, or "all" for every name."""

    def __init__(self, listed: str) -> None:
        entries = [entry.strip().lower() for entry in listed.split(",") if entry.strip()]
        self._all = ALL in entries
        self._names: set[str] = set()
        self._suffixes: list[str] = []
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for entry in entries:
            self._take(entry)

    def _take(self, entry: str) -> None:
        try:
            self._networks.append(ipaddress.ip_network(entry.strip("[]")))
            return
        except ValueError:
            pass
        if "/" in entry or ":" in entry or "*" in entry[1:]:
            raise StartError(f"--allowed_media_domains: {entry!r} is no host name, address or network")
        if entry.startswith("*"):
            self._suffixes.append(entry[1:] if entry.startswith("*.") else "." + entry[1:])
        elif entry != ALL:
            self._names.add(entry)

    def __bool__(self) -> bool:
        """Anything is allowed at all."""
        return bool(self._all or self._names or self._suffixes or self._networks)

    def name(self, host: str) -> bool:
        """Images may be asked for from a host of that name (or address, as it stands in a URL)."""
        literal = parse(host)
        if literal is not None:
            return self._listed(literal) or self._all
        return self._all or host in self._names or any(host.endswith(suffix) for suffix in self._suffixes)

    def address(self, address: Address) -> bool:
        """A connection may go there."""
        return self._listed(address) or is_public(address)

    def _listed(self, address: Address) -> bool:
        plain = unmapped(address)
        return any(plain in network for network in self._networks if network.version == plain.version)


def parse(host: str) -> Address | None:
    """The address that a URL's host is, None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def unmapped(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for on this machine (::ffff:127.0.0.1), else itself."""
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def is_public(address: Address) -> bool:
    """On the public internet: not private, loopback, link-local, shared, reserved, multicast or a way around that."""
    address = unmapped(address)
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
        if address not in _GLOBAL or any(address in network for network in _TRANSLATED):
            return False
    elif any(address in network for network in _SPECIAL):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved
