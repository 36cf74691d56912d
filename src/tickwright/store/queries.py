"""Named SQL, loaded from ``.sql`` files that ship beside the code that uses them.

A file holds queries like this one, and nothing else::

    -- name: take_slice
    -- Take a lease on a slice that nobody holds. Index: job_config_pkey.
    UPDATE … ;

Loading fails at import when a name is missing, doubled or has no promise line, so that a typing
error can never wait for the night in which the query is needed. The idea is procrastinate's.
"""

import re
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType

_NAME = re.compile(r"^-- name: ([a-z][a-z0-9_]*)\n", re.MULTILINE)


def load(package: str, filename: str) -> Mapping[str, str]:
    """Return the queries of one file by name.

    Args:
        package: Dotted name of the package that holds the file, such as ``tickwright.store.sql``.
        filename: Such as ``leases.sql``.

    Raises:
        ValueError: A query has no name, no promise line or a name that is taken. Permanent.
    """
    text = resources.files(package).joinpath(filename).read_text(encoding="utf-8")
    head, *parts = _NAME.split(text)
    if any(line and not line.startswith("--") for line in head.splitlines()):
        raise ValueError(f"{package}/{filename}: text before the first '-- name:' line")
    queries: dict[str, str] = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        if name in queries:
            raise ValueError(f"{package}/{filename}: two queries named {name}")
        if not body.startswith("-- "):
            raise ValueError(f"{package}/{filename}: {name} does not say what it promises")
        queries[name] = body.strip().rstrip(";")
    return MappingProxyType(queries)


def filled(queries: Mapping[str, str], fragment: str, *, of: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Return queries in which ``{fragment}`` stands for the text of the one of that name, without its promise.

    ``of`` is where it is found, if not among them.
    """
    lines = (queries if of is None else of)[fragment].splitlines()
    text = "\n".join(line for line in lines if not line.startswith("--"))
    return MappingProxyType({name: query.replace(f"{{{fragment}}}", text) for name, query in queries.items()})


def with_lanes(queries: Mapping[str, str]) -> Mapping[str, str]:
    """Return queries in which ``{lane}``, ``{runnable}``, ``{claimable}`` and so on stand for walks over lanes."""
    return with_shared(queries, "lane", "runnable", "claimable", "counted", "known")


def with_shared(queries: Mapping[str, str], *fragments: str) -> Mapping[str, str]:
    """Return queries in which ``{fragment}`` stands for the text of each of these in ``fragments.sql``."""
    for fragment in fragments:
        queries = filled(queries, fragment, of=_SHARED)
    return queries


_SHARED = load("tickwright.store.sql", "fragments.sql")
