"""Ports for servers of tests: no other process gets one before its server listens, or while the server is down.

A port that the kernel picks may be used by another process a moment later: another test process picks it too, or a
client gets it as the local end of a connection. So each test process takes blocks of ports for itself, one after
another, below those that Linux assigns to clients, and returns their ports one by one. A block is taken by a socket
with an abstract name: it vanishes with its process, and it belongs to a network namespace as ports do.

A server of the whole run may listen at its port only now and then, such as the proxy that Kafka advertises to its
clients. So a port is returned again only after more ports than a run needs.
"""

import itertools
import socket
from collections.abc import Iterator
from functools import cache

FIRST = 12_000
LAST = 32_000  # not included; the kernel's own for clients begin at 32,768
IN_A_BLOCK = 200
BLOCKS_MAX = 30  # of one process; three of them have room beside each other
_BLOCKS = range(FIRST, LAST, IN_A_BLOCK)
_taken: list[socket.socket] = []
"""Held until the process ends."""


def free_port() -> int:
    """Return an unused loopback port; it is returned again only after 5,999 others."""
    return next(port for port in itertools.islice(_ports_in_order(), BLOCKS_MAX * IN_A_BLOCK) if _is_free(port))


@cache
def _ports_in_order() -> Iterator[int]:
    return itertools.cycle(itertools.chain.from_iterable(_blocks()))


def _blocks() -> Iterator[range]:
    mine = (range(first, first + IN_A_BLOCK) for first in _BLOCKS if _take(first))
    return itertools.islice(mine, BLOCKS_MAX)


def _take(block: int) -> bool:
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0tickwright-test-ports-{block}")
    except OSError:
        lock.close()
        return False
    _taken.append(lock)
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
