"""Ports of the kit are used by no other process, including other test processes."""

import socket
import subprocess
import sys
from pathlib import Path

from kit.ports import BLOCKS_MAX, FIRST, IN_A_BLOCK, LAST, free_port

_KIT = Path(__file__).parents[2]
_ASK = "from kit.ports import free_port; print(*(free_port() for _ in range({})))"


def ports_of_another_process(count: int) -> list[int]:
    """Return so many ports of another process, so that this one does not run out."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK.format(count)], cwd=_KIT, capture_output=True, text=True, check=True
    )
    return [int(number) for number in done.stdout.split()]


def test_two_processes_never_have_one_port() -> None:
    """Each process has its own blocks as long as it lives, and no port is repeated while there are others."""
    mine = {free_port() for _ in range(5)}
    others = ports_of_another_process(3 * IN_A_BLOCK)
    assert len(set(others)) == len(others)
    assert not mine & set(others)


def test_no_port_is_in_the_range_of_clients() -> None:
    """A client that got its server's port during the server's outage would block its restart, or connect to itself."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(FIRST <= port < min(LAST, lowest) for port in ports_of_another_process(BLOCKS_MAX * IN_A_BLOCK))


def test_a_port_in_use_is_skipped() -> None:
    """Another process listens on it: the next one is returned."""
    [first] = ports_of_another_process(1)
    with socket.create_server(("127.0.0.1", first)):
        assert first not in ports_of_another_process(2 * BLOCKS_MAX * IN_A_BLOCK)
