"""Modules: what an entity is polled for, and how the list of them is written in a column."""

import re

MODULE_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,49}")
"""A whole name of a module; it is the task type of a message, and a part of ``ENABLE_<NAME>_POLLING``."""


def parse_modules(text: str) -> tuple[str, ...]:
    """Return the modules that ``text``, such as ``"LOCATIONS,TARIFFS"``, names: in capitals, each once, in their order.

    Rows are also written by hand in SQL, so spaces, small letters, doubles and empty places are no mistake. A name that
    no module has is returned as well: whoever asks knows which ones there are.

    Args:
        text: Names with commas between; may be empty.

    Invariants:
        MOD-1: ``parse_modules(",".join(parse_modules(t))) == parse_modules(t)``.
    """
    names = (name.strip().upper() for name in text.split(","))
    return tuple(dict.fromkeys(name for name in names if name))
