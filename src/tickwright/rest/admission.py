"""Limits of a listener's connections, in all and per client address, and which connection makes room for a new one.

At a limit, a new connection displaces the oldest connection that waits for its client: one of the new connection's own
address if that address has its share, otherwise one of the address with most connections. So a client that opens
connections and sends nothing displaces itself. If every connection has a request in progress, none is displaced. Then a
few spare connections are accepted, which get answers from the probes and a refusal from every other path.

Bytes that clients have not read have a limit over all connections. Above it, the connection that has waited longest for
its reader is closed, of the address with most unread bytes. Answers to requests without a key are closed first if they
are over half of the limit, otherwise answers to keys: neither group can block the other. The only unread connection is
kept, and so is the only one with a key, so an answer of any size arrives.
"""

import platform
import resource
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tickwright.domain.admission import Hosts, Network, client_of, covers

SPARES_MAX = 128
UNREAD_UNCOUNTED = 16_384


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """The limits of one listener; times in seconds.

    Attributes:
        head_s: From a connection, or from the first byte of a head, to the end of that head.
        idle_s: From the end of an answer to the next head.
        unread_s: In which a client must read ``bytes_per_s`` of what waits for it.
        linger_s: From an answer to a body that was not read, to the end of the connection.
        bytes_per_s: The slowest reader.
        unread_bytes: Unread by all clients together; up to ``UNREAD_UNCOUNTED`` of each connection do not count.
        connections: In all; fewer where the process may open fewer files.
        per_address: Per client address (in IPv6, per network of 64 bits).
        proxies: Networks of reverse proxies. Many clients share their addresses, so these have no share.
        hosts: Accepted host names, besides this machine's own, addresses and names without a dot.
    """

    head_s: float = 10.0
    idle_s: float = 75.0
    unread_s: float = 30.0
    linger_s: float = 2.0
    bytes_per_s: int = 1024
    unread_bytes: int = 67_108_864
    connections: int = 4096
    per_address: int = 512
    proxies: tuple[Network, ...] = ()
    hosts: tuple[str, ...] = ()

    @property
    def shortest_s(self) -> float:
        """The shortest deadline."""
        return min(self.head_s, self.idle_s, self.unread_s, self.linger_s)


PROBES_LIMITS = ListenerLimits(connections=256, per_address=128)


class Admitted(Enum):
    """Decision about a new connection."""

    FULLY = "fully"
    SPARE = "spare"
    REFUSED = "refused"


class Connection(Protocol):
    """A counted connection."""

    @property
    def waits_for_client(self) -> bool:
        """Whether its next step is the client's: to send or to read."""

    @property
    def has_key(self) -> bool:
        """Whether its current answer is for a request with a key."""

    @property
    def transport(self) -> "Transport":
        """Its transport."""


class Transport(Protocol):
    """A transport that closes at once, and knows its unread bytes."""

    def abort(self) -> None:
        """Close at once."""

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the client has not read."""


class Admission:
    """The connections of one listener."""

    def __init__(self, limits: ListenerLimits) -> None:
        self.limits = limits
        self.hosts = Hosts([*limits.hosts, platform.node().lower()])
        self._max = min(limits.connections, max(64, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
        self._held: dict[str, dict[Connection, None]] = {}
        self._spares: dict[Connection, None] = {}
        self._address_of: dict[Connection, str] = {}
        self._unread: dict[Connection, None] = {}
        self.cut = 0
        self._counts: Counter[str] = Counter()

    def admit(self, connection: Connection, address: str) -> Admitted:
        """Count a new connection; without room, close one that waits for its client."""
        address = client_of(address)
        of_its_own = self._held.get(address, {})
        if len(of_its_own) >= self.limits.per_address and not covers(self.limits.proxies, address):
            room = self._displace([of_its_own])
        else:
            room = len(self._address_of) - len(self._spares) < self._max or self._displace(self._by_size())
        if room:
            self._held.setdefault(address, {})[connection] = None
            self._address_of[connection] = address
            return Admitted.FULLY
        if len(self._spares) < SPARES_MAX or self._displace([self._spares]):
            self._spares[connection] = None
            self._address_of[connection] = address
            return Admitted.SPARE
        self._counts["refused"] += 1
        return Admitted.REFUSED

    def forget(self, connection: Connection) -> None:
        """Stop counting a connection that has ended or is being closed."""
        self._unread.pop(connection, None)
        address = self._address_of.pop(connection, None)
        if address is None:
            return
        if self._spares.pop(connection, connection) is None:
            return
        held = self._held[address]
        del held[connection]
        if not held:
            del self._held[address]

    @property
    def unread_bytes(self) -> int:
        """Number of bytes that clients have not read."""
        return sum(connection.transport.get_write_buffer_size() for connection in self._unread)

    def note_unread(self, connection: Connection) -> None:
        """Count unread bytes of a connection; above the limit close connections, perhaps this one."""
        if connection not in self._address_of:  # refused, or closed already
            return
        self._unread[connection] = None
        while self.unread_bytes > self.limits.unread_bytes and len(self._unread) > 1:
            self._close(self._slowest(), "unread")

    def note_read(self, connection: Connection) -> None:
        """Stop counting a connection whose client has read everything."""
        self._unread.pop(connection, None)

    def take_counts(self) -> dict[str, int]:
        """Return how many connections were closed since the last call, by reason."""
        found = {name: count for name, count in {**self._counts, "too_slow": self.cut}.items() if count}
        self._counts.clear()
        self.cut = 0
        return found

    def _by_size(self) -> Iterable[dict[Connection, None]]:
        return sorted(self._held.values(), key=len, reverse=True)

    def _displace(self, groups: Iterable[dict[Connection, None]]) -> bool:
        """Close the oldest waiting connection of the first group that has one."""
        for group in groups:
            found = next((connection for connection in group if connection.waits_for_client), None)
            if found is not None:
                self._close(found, "displaced")
                return True
        return False

    def _slowest(self) -> Connection:
        """Return the connection that has waited longest for its reader, of the group to close first."""
        bytes_of: Counter[tuple[bool, str]] = Counter()
        for connection in self._unread:
            bytes_of[self._group(connection)] += connection.transport.get_write_buffer_size()
        keyless = sum(size for (has_key, _), size in bytes_of.items() if not has_key)
        with_key = sum(connection.has_key for connection in self._unread)
        keys_go = keyless * 2 <= self.limits.unread_bytes and with_key > 1
        first = max(bytes_of, key=lambda group: (group[0] == keys_go, bytes_of[group]))
        return next(connection for connection in self._unread if self._group(connection) == first)

    def _group(self, connection: Connection) -> tuple[bool, str]:
        return connection.has_key, self._address_of[connection]

    def _close(self, connection: Connection, why: str) -> None:
        self.forget(connection)
        connection.transport.abort()
        self._counts[why] += 1
