"""Client addresses: which networks are listed, and what counts as one client."""

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

_NEIGHBOURS_BITS = 64
Network = IPv4Network | IPv6Network


def parse_networks(text: str) -> tuple[Network, ...]:
    """Read a list of networks with commas, such as ``10.0.0.0/8, 127.0.0.1``.

    Raises:
        ValueError: An entry is none. Permanent.
    """
    try:
        return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError("write networks with commas, such as 10.0.0.0/8, 127.0.0.1") from None


@lru_cache(4096)
def client_of(text: str) -> str:
    """Return what counts as one client: nobody has one address of IPv6."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if not isinstance(address, IPv6Address):
        return text
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((int(address), _NEIGHBOURS_BITS), strict=False).network_address)


@lru_cache(4096)
def covers(networks: tuple[Network, ...], text: str) -> bool:
    """Whether an address lies in one of the networks."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return any(address.version == network.version and address in network for network in networks)
