"""What things of a report may be called.

A listener's name is a table of the merging SQL, a part of a queue's name, a routing key and a field of a Redis hash.
"""

import re

from tickwright.ports.reports import RESERVED_LISTENERS

TYPE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}")
SOURCE_NAME = TYPE_NAME
PARAMETER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,49}")
_LISTENER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,49}")
RESERVED_FIELDS = frozenset(name.lower() for name in RESERVED_LISTENERS)
"""What the Redis hash says of the report itself, and the queue of dead letters."""
_WORDS = (
    "all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create default "
    "deferrable desc describe distinct do else end except false fetch for foreign from group having in initially "
    "intersect into lambda lateral leading limit not null offset on only or order pivot pivot_longer pivot_wider "
    "placing primary qualify references returning select show some summarize symmetric table then to trailing true "
    "union unique unpivot using variadic when where window with"
)
RESERVED = frozenset(_WORDS.split())
"""Words that DuckDB takes for itself: a table of such a name would have to be quoted everywhere."""


def listener_problem(name: str) -> str | None:
    """Return what is wrong with a listener's name, or ``None``."""
    if not _LISTENER_NAME.fullmatch(name):
        return "a listener's name has 1 to 50 letters, digits or '_', a letter first: it is a table of the merging SQL"
    if name.lower() in RESERVED:
        return f"{name} is a word of SQL; call the listener something else, such as {name[:45]}_rows"
    if name.lower() in RESERVED_FIELDS:
        return f"{name} is a field or a queue of our own; call the listener something else, such as {name[:45]}_rows"
    return None
