"""Named SQL, loaded from ``.sql`` files beside the code that uses them.

A file holds only queries such as this one::

    -- name: take_lease
    -- Take a lease that is free or whose deadline has passed. Index: job_config_pkey.
    UPDATE … ;

Loading fails at import when a name is missing or doubled, or a query has no promise line, so a typing error appears at
once. The idea is procrastinate's.
"""

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType

REVISIONS = Path(__file__).parent / "migrations" / "versions"
_NAME = re.compile(r"^-- name: ([a-z][a-z0-9_]*)\n", re.MULTILINE)


def load(package: str, filename: str) -> Mapping[str, str]:
    """Return the queries of one file by name, such as those of ``leases.sql`` in the package ``tickwright.engine.sql``.

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
    """Return queries with ``{fragment}`` replaced by the text of that query, without its promise.

    ``of`` contains the fragment; by default ``queries`` does.
    """
    lines = (queries if of is None else of)[fragment].splitlines()
    text = "\n".join(line for line in lines if not line.startswith("--"))
    return MappingProxyType({name: query.replace(f"{{{fragment}}}", text) for name, query in queries.items()})


def with_shared(queries: Mapping[str, str], *fragments: str, of: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Return queries with each ``{fragment}`` replaced by its text in ``of``, by default ``fragments.sql``."""
    for fragment in fragments:
        queries = filled(queries, fragment, of=of or _SHARED)
    return queries


_SHARED = load("tickwright.store.sql", "fragments.sql")


def head_revision() -> str:
    """Return the newest schema revision of this release, such as ``"0002"``; needs no import of Alembic."""
    return max(path.name for path in REVISIONS.glob("*.sql")).partition("_")[0]
