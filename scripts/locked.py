"""Print the part of requirements.lock that one kind of installation needs, with its hashes.

    python scripts/locked.py product|dev

The lock says in its comments which package or group asks for each package (``# via``). The product needs what the
project and the group ``build`` ask for, and what that asks for; ``dev`` needs everything. Standard library only: it
runs before anything is installed.
"""

import re
import sys
from pathlib import Path

LOCK = Path(__file__).parents[1] / "requirements.lock"
ROOTS = frozenset({"tickwright (pyproject.toml)", "tickwright (pyproject.toml:build)"})


def blocks(lock: str) -> list[str]:
    """Return one text for each requirement: its line, its hashes and its comments."""
    return re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)[1:]


def name_of(block: str) -> str:
    """Return the name of the package."""
    return re.split(r"[=\[ ;]", block, maxsplit=1)[0]


def asked_by(block: str) -> set[str]:
    """Return what asks for the package."""
    comments = [line.strip().removeprefix("#").strip() for line in block.splitlines() if line.startswith("    #")]
    return {line.removeprefix("via").strip() for line in comments} - {""}


def product(lock: str) -> list[str]:
    """Return the blocks that the product and its build need."""
    found = blocks(lock)
    needed = set(ROOTS)
    while more := {name_of(block) for block in found if asked_by(block) & needed} - needed:
        needed |= more
    return [block for block in found if name_of(block) in needed]


def main() -> None:
    """Print the requirements."""
    lock = LOCK.read_text(encoding="utf-8")
    sys.stdout.write(lock if sys.argv[1:] == ["dev"] else "".join(product(lock)))


if __name__ == "__main__":
    main()
