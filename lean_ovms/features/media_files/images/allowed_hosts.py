"""Decides from which hosts and addresses images may be fetched. It does not resolve names.

A host must be listed by name. Each address to which it resolves must be on the public internet or be listed itself,
since a name can point to any address, also to this machine, its network, or a cloud's metadata service.
"""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv6Address

from ....errors import StartError

Address = IPv4Address | IPv6Address
ALL = "all"
_GLOBAL = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_RESERVED = (ipaddress.IPv4Network("192.0.0.0/24"), ipaddress.IPv4Network("192.88.99.0/24"))
"""Reserved for protocols (a cloud's metadata service) and for relays; not every version of Python knows them."""
_RELAYED = (ipaddress.IPv6Network("2002::/16"), ipaddress.IPv6Network("2001::/32"))
"""6to4 and Teredo: they hold an IPv4 address, to which a relay would connect."""


class AllowedHosts:
    """The value of --allowed_media_domains: names, *.name for subdomains, addresses, networks, "all" for any name."""

    def __init__(self, listed: str) -> None:
        entries = [entry.strip().lower() for entry in listed.split(",") if entry.strip()]
        self._all = ALL in entries
        self._names: set[str] = set()
        self._suffixes: list[str] = []
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for entry in entries:
            self._add(entry)

    def _add(self, entry: str) -> None:
        try:
            self._networks.append(ipaddress.ip_network(entry.strip("[]")))
            return
        except ValueError:
            pass
        if "/" in entry or ":" in entry or "*" in entry[1:]:
            raise StartError(f"--allowed_media_domains: {entry!r} is not a host name, address or network")
        if entry.startswith("*"):
            self._suffixes.append(entry[1:] if entry.startswith("*.") else "." + entry[1:])
        elif entry != ALL:
            self._names.add(entry)

    def __bool__(self) -> bool:
        return bool(self._all or self._names or self._suffixes or self._networks)

    def allows_host(self, host: str) -> bool:
        """Returns whether images may be fetched from a host, given its name or address as it is written in a URL."""
        literal = parse_address(host)
        if literal is not None:
            return self._listed(literal) or self._all
        return self._all or host in self._names or any(host.endswith(suffix) for suffix in self._suffixes)

    def allows_address(self, address: Address) -> bool:
        return self._listed(address) or is_public(address)

    def _listed(self, address: Address) -> bool:
        plain = without_mapping(address)
        return any(plain in network for network in self._networks if network.version == plain.version)


def parse_address(host: str) -> Address | None:
    """Parses the host of a URL as an address. Returns None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def without_mapping(address: Address) -> Address:
    """Returns the IPv4 address in an IPv4-mapped IPv6 address (::ffff:127.0.0.1), else the address itself."""
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def is_public(address: Address) -> bool:
    """Returns whether an address is public: not private, loopback, link-local, shared, reserved or multicast."""
    address = without_mapping(address)
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
        if address not in _GLOBAL or any(address in network for network in _RELAYED):
            return False
    elif any(address in network for network in _RESERVED):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved
