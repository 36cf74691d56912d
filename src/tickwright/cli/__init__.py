"""The command line. Exit codes: 0 done, 1 failed, 2 wrong use."""

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    from tickwright.cli.program import run

    sys.exit(run(sys.argv[1:]))
