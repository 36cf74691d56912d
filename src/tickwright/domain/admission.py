"""Which requests a listener answers: the names in ``Host``, and the identity of a client.

This prevents DNS rebinding: a foreign page can point its own name at our address and then read our answers in a
visitor's browser. The browser sends that name in ``Host``. So a name is accepted only if no stranger can own it: an
address, a name without a dot (``localhost``, a service of a cluster or of Compose), this machine's own name, and names
that the operator lists.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network
NAMES_SEEN_MAX = 1_000
_CLIENT_BITS = 64  # of an IPv6 address; a client has many addresses in its network
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[^\[\]:/@\s]+))(?::[0-9]{1,5})?")
_LISTED = re.compile(r"\*|(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")


def parse_hosts(text: str) -> tuple[str, ...]:
    """Read a list of names with commas; ``*.example.org`` for all below, ``*`` for every name.

    Raises:
        ValueError: An entry is invalid. Permanent.
    """
    found = tuple(part.strip().lower().rstrip(".") for part in text.split(",") if part.strip())
    if not all(_LISTED.fullmatch(name) for name in found):
        raise ValueError("write names with commas and without ports, such as ticks.example.org, *.internal.example")
    return found


class Hosts:
    """The accepted values of ``Host``: ``names`` from ``parse_hosts``, and this machine's own."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)
        self._all = "*" in self._names
        self._ends = tuple(name[1:] for name in self._names if name.startswith("*."))
        self._seen: dict[bytes, bool] = {}

    def allow(self, host: bytes) -> bool:
        """Return whether a value of ``Host`` is accepted."""
        found = self._seen.get(host)
        if found is None:
            if len(self._seen) >= NAMES_SEEN_MAX:
                self._seen.clear()
            found = self._seen[host] = self._is_accepted(host.decode("latin-1").lower())
        return found

    def _is_accepted(self, host: str) -> bool:
        parts = _HOST.fullmatch(host)
        if parts is None:
            return False
        if parts["six"] is not None:
            return _is_address(parts["six"])
        name = parts["name"].rstrip(".")
        return self._all or "." not in name or _is_address(name) or name in self._names or name.endswith(self._ends)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def parse_networks(text: str) -> tuple[Network, ...]:
    """Read a list of networks with commas, such as ``10.0.0.0/8, 127.0.0.1``.

    Raises:
        ValueError: An entry is invalid. Permanent.
    """
    try:
        return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError("write networks with commas, such as 10.0.0.0/8, 127.0.0.1") from None


@lru_cache(4096)
def client_of(text: str) -> str:
    """Return the identity of a client: its address, or its IPv6 network."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if not isinstance(address, IPv6Address):
        return text
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((int(address), _CLIENT_BITS), strict=False).network_address)


@lru_cache(4096)
def covers(networks: tuple[Network, ...], text: str) -> bool:
    """Return whether an address is in one of the networks."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return any(address.version == network.version and address in network for network in networks)
