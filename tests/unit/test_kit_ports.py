"""Ports that the kit gives out: nobody else's, also not another test process's."""

import socket
import subprocess
import sys
from pathlib import Path

from kit.ports import FIRST, IN_A_BLOCK, LAST, free_port

_KIT = Path(__file__).parents[1]
_ASK = f"from kit.ports import free_port; print(*(free_port() for _ in range({IN_A_BLOCK})))"


def test_two_processes_never_have_one_port() -> None:
    """Each has a block of its own for as long as it lives, and every port comes once before one comes again."""
    mine = {free_port() for _ in range(IN_A_BLOCK)}
    said = subprocess.run([sys.executable, "-c", _ASK], cwd=_KIT, capture_output=True, text=True, check=True)
    others = {int(word) for word in said.stdout.split()}
    assert len(others) > IN_A_BLOCK / 2, "some may be in use by somebody else"
    assert not mine & others


def test_no_port_is_one_that_linux_gives_to_clients() -> None:
    """A client that gets its server's port while that is down keeps it from coming back, or talks to itself."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(FIRST <= free_port() < min(LAST, lowest) for _ in range(IN_A_BLOCK))


def test_a_port_in_use_is_passed_over() -> None:
    """Somebody listens on it: the next one is given."""
    first = free_port()
    with socket.create_server(("127.0.0.1", first)):
        assert first not in {free_port() for _ in range(IN_A_BLOCK)}
