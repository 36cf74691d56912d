"""Stops the test server of a home that no process uses: ``python -m tickwright.testing.guard HOME``.

A test run starts it through a shell that waits for the run's end, so it runs only after a run that was killed.
"""

import sys
from datetime import timedelta
from pathlib import Path

from tickwright.embedded.home import open_home
from tickwright.embedded.processes import find_postmaster, has_users, start_lock, stop_postmaster

WITHIN = timedelta(minutes=1)


def main(home: str) -> None:
    """Stop the server, unless a process uses it."""
    found = open_home(Path(home))
    with start_lock(found, WITHIN):
        postmaster = find_postmaster(found)
        if postmaster is not None and not has_users(found):
            stop_postmaster(found, postmaster)


if __name__ == "__main__":
    main(sys.argv[1])
