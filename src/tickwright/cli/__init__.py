"""The command line. Exit codes: 0 done, 1 failed, 2 wrong use."""

import gc
import sys

from tickwright.domain.errors import TickwrightError


def main() -> None:
    """Run the command line and exit with its code."""
    gc.disable()  # loading makes many objects, of which almost all stay
    try:
        from tickwright.cli.program import run
    except TickwrightError as error:  # an installed plugin is broken, and the commands are those of plugins
        from tickwright.cli.kit.output import show_error

        show_error(error, as_json="--json" in sys.argv)
        sys.exit(2)
    gc.freeze()
    gc.enable()
    sys.exit(run(sys.argv[1:]))
