"""Which network addresses a callback may reach: the rule against server-side request forgery.

A user chooses a destination, but the connection starts inside our network, where loopback, private services and a
cloud's metadata endpoint answer every caller. So the connected address is checked, never the name. A public address is
reached by TLS only, one of the allow list also in plain text. Everything else is blocked, and the answer names a class
(``loopback``, ``private``, …), never the address, so that callbacks cannot explore a private zone of the DNS.

Python's ``is_global`` alone would allow NAT64 and 6to4 addresses that lead to loopback, multicast, and the host address
of Azure; so this module has its own tables, from the registries of IANA.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from tickwright.domain.errors import Rejected

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_V4_BLOCKED: Mapping[str, str] = {
    "unspecified": "0.0.0.0/8",
    "private": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16",
    "shared": "100.64.0.0/10",  # carrier NAT; Alibaba's metadata
    "loopback": "127.0.0.0/8",
    "cloud_metadata": "168.63.129.16/32",  # Azure's host; public by its number only
    "link_local": "169.254.0.0/16",  # metadata of most clouds
    "documentation": "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24",
    "transition": "192.88.99.0/24",
    "benchmark": "198.18.0.0/15",
    "multicast": "224.0.0.0/4",
    "reserved": "192.0.0.0/24 192.31.196.0/24 192.52.193.0/24 192.175.48.0/24 240.0.0.0/4",  # Oracle's metadata
}
_V6_BLOCKED: Mapping[str, str] = {  # the first network that contains an address counts
    "unspecified": "::/128",
    "loopback": "::1/128",
    # IPv4-compatible, long deprecated; NAT64 of a local network, which decides where it leads; Teredo; 6to4
    "transition": "::/96 64:ff9b:1::/48 2001::/32 2002::/16",
    "documentation": "2001:db8::/32 3fff::/20",
    "private": "fc00::/7 fec0::/10",
    "link_local": "fe80::/10",
    "multicast": "ff00::/8",
    "reserved": "100::/64 2001::/23 2620:4f:8000::/48 5f00::/16",
}
_V4 = tuple((IPv4Network(text), reason) for reason, texts in _V4_BLOCKED.items() for text in texts.split())
_V6 = tuple((IPv6Network(text), reason) for reason, texts in _V6_BLOCKED.items() for text in texts.split())
_V6_GLOBAL = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class AllowEntry:
    """A network that may be reached although it is not public, on one port or on all."""

    network: Network
    port: int | None = None


@dataclass(frozen=True, slots=True)
class AllowList:
    """Addresses that callbacks, couriers and webhooks may reach besides public ones; empty by default."""

    entries: tuple[AllowEntry, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "AllowList":
        """Read ``TICKWRIGHT_ALLOW_TARGETS``: ``10.0.0.0/8, 192.168.7.4:8080, [fd00::/8]:443``.

        Raises:
            Rejected: ``invalid_allow_list``, naming the entry. Permanent.
        """
        return cls(tuple(_entry(part.strip()) for part in text.split(",") if part.strip()))

    def allows(self, address: Address, port: int) -> bool:
        """Return whether an entry covers the address (an IPv4-mapped one as its IPv4 address) on this port."""
        plain = _unmapped(address)
        return any(
            plain.version == entry.network.version and plain in entry.network and entry.port in (None, port)
            for entry in self.entries
        )


def _entry(text: str) -> AllowEntry:
    network, port = text, None
    if text.startswith("["):
        network, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":") if rest else None
    elif text.count(":") == 1:
        network, _, port = text.partition(":")
    message = f"{text!r} is no entry of an allow list; write 10.0.0.0/8, 10.1.2.3:8080 or [fd00::/8]:443."
    if port is not None and not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise Rejected("invalid_allow_list", message)
    try:
        return AllowEntry(ip_network(network), None if port is None else int(port))
    except ValueError:
        raise Rejected("invalid_allow_list", message) from None


def _unmapped(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped if mapped is not None else address


@lru_cache(maxsize=4096)
def block_reason(address: Address) -> str | None:
    """Return the class of an address that is not public; ``None`` for a public one.

    IPv4-mapped and well-known NAT64 addresses are checked as the IPv4 address they lead to. 6to4, Teredo and local
    NAT64 are never public: it is unknown where their relay leads.
    """
    plain = _unmapped(address)
    if isinstance(plain, IPv6Address):
        if plain in _NAT64:
            return block_reason(IPv4Address(int(plain) & 0xFFFFFFFF))
        if plain.scope_id is not None:
            return "link_local"
        reason = next((reason for network, reason in _V6 if plain in network), None)
        return reason if reason or plain in _V6_GLOBAL else "reserved"
    return next((reason for network, reason in _V4 if plain in network), None)


def refusal(address: Address, port: int, *, tls: bool, allow: AllowList) -> str | None:
    """Return why this address must not be connected to: a class such as ``private``, or ``plain_text``: without TLS."""
    if allow.entries and allow.allows(address, port):
        return None
    return block_reason(address) or (None if tls else "plain_text")


def refusal_unasked(literal: Address | None, port: int, *, tls: bool, allow: AllowList) -> str | None:
    """Return what can be refused before a name is resolved; ``literal`` is the host if it is an address."""
    if literal is not None:
        return refusal(literal, port, tls=tls, allow=allow)
    return None if tls or allow.entries else "plain_text"


def refusal_of_all(addresses: Iterable[Address], port: int, *, tls: bool, allow: AllowList) -> str | None:
    """Return the first refusal among all addresses of a name.

    One blocked address among public ones refuses the whole name: a rebinding attack has such mixed answers, and the
    resolver does not choose which address is connected to.
    """
    return next(filter(None, (refusal(address, port, tls=tls, allow=allow) for address in addresses)), None)
