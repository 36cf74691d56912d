"""Ports that the kit gives out: nobody else's, also not another test process's."""

import socket
import subprocess
import sys
from pathlib import Path

from kit.ports import BLOCKS_MAX, FIRST, IN_A_BLOCK, LAST, free_port

_KIT = Path(__file__).parents[2]
_ASK = "from kit.ports import free_port; print(*(free_port() for _ in range({})))"


def given_out(count: int) -> list[int]:
    """Return so many ports as another process has them, so that this one does not run out."""
    said = subprocess.run(
        [sys.executable, "-c", _ASK.format(count)], cwd=_KIT, capture_output=True, text=True, check=True
    )
    return [int(word) for word in said.stdout.split()]


def test_two_processes_never_have_one_port() -> None:
    """Each has blocks of its own for as long as it lives, and no port comes again as long as there are others."""
    mine = {free_port() for _ in range(5)}
    others = given_out(3 * IN_A_BLOCK)
    assert len(set(others)) == len(others)
    assert not mine & set(others)


def test_no_port_is_one_that_linux_gives_to_clients() -> None:
    """A client that gets its server's port while that is down keeps it from coming back, or talks to itself."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(FIRST <= port < min(LAST, lowest) for port in given_out(BLOCKS_MAX * IN_A_BLOCK))


def test_a_port_in_use_is_passed_over() -> None:
    """Somebody listens on it: the next one is given, by whoever has the block next."""
    [first] = given_out(1)
    with socket.create_server(("127.0.0.1", first)):
        assert first not in given_out(2 * BLOCKS_MAX * IN_A_BLOCK)
