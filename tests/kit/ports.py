"""Ports for what tests start: nobody takes one between the asking and the listening, or while its server is down.

A port that the kernel picks may be anybody's a moment later: another test process picks it too, or some
client is given it as the near end of a connection. So each test process takes blocks of ports for itself, one after
another, below those that Linux hands to clients, and gives them out in turn. What a block is taken by is a socket with
an abstract name: it vanishes with its process, and it belongs to a network namespace as ports do.

A server of the whole run may listen at its port only now and then, such as the proxy that Kafka names to its clients.
So a port comes again only after more than a run asks for.
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
    """Return a loopback port that nobody uses, and that is given to nobody else before 5,999 others were."""
    return next(port for port in itertools.islice(_ports_in_turn(), BLOCKS_MAX * IN_A_BLOCK) if _is_free(port))


@cache
def _ports_in_turn() -> Iterator[int]:
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
