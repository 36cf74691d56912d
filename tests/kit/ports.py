"""Ports for what tests start: nobody takes one between the asking and the listening, or while its server is down.

A port that the kernel picks may be anybody's a moment later: another test process picks it too, or some
client is given it as the near end of a connection. So each test process takes a block of ports for itself,
below those that Linux hands to clients, and gives them out in turn. What a block is taken by is a socket with an
abstract name: it vanishes with its process, and it belongs to a network namespace as ports do.
"""

import itertools
import socket
from collections.abc import Iterator
from functools import cache

FIRST = 12_000
LAST = 32_000  # not included; the kernel's own for clients begin at 32,768
IN_A_BLOCK = 200
_BLOCKS = range(FIRST, LAST, IN_A_BLOCK)
_taken: list[socket.socket] = []
"""Held until the process ends."""


def free_port() -> int:
    """Return a loopback port that nobody uses, and that is given to nobody else before 199 others were."""
    ports = _ports_in_turn()
    return next(port for port in itertools.islice(ports, IN_A_BLOCK) if _is_free(port))


@cache
def _ports_in_turn() -> Iterator[int]:
    block = next(first for first in _BLOCKS if _take(first))
    return itertools.cycle(range(block, block + IN_A_BLOCK))


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
