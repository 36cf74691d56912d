"""Whether an audience can be read as it is said, asked of its source when a campaign is saved: no member is read.

The source, the table or query, the key and every column, each with the nearest name where it is not there.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from tickwright.capabilities.batches.audience.audience import Audience, Audiences
from tickwright.capabilities.batches.audience.keys import no_key
from tickwright.capabilities.batches.audience.schema import AudienceTerms, read_audience, refuse
from tickwright.capabilities.batches.audience.sql_text import cast_of, key_kind
from tickwright.domain.errors import Rejected
from tickwright.ports.batches import Dialect
from tickwright.ports.reports import Column

_TOLD = {"unknown_source": "source", "unknown_source_scheme": "source", "secret_missing": "source"}
_TOLD |= {"invalid_source": "source", "object_missing": "file", "audience_unreadable": "file"}


async def check_audience(audiences: Audiences, document: Any, *, where: str = "audience") -> AudienceTerms:
    """Return the terms of an audience that can be read now.

    A file is fetched for this, as it is for an execution.

    Raises:
        Rejected: ``invalid_audience`` with every mistake in ``problems``, each behind its path. Permanent.
        Unavailable: The source or the object store does not answer. Retry.
    """
    terms = read_audience(document, where=where)
    problems: list[str] = []
    try:
        async with audiences.open(terms) as audience:
            await _check(audience, problems, where=where)
    except Rejected as error:
        if error.code not in _TOLD:
            raise
        problems.append(f"{where}.{_TOLD[error.code]}: {error.message}")
    refuse(problems)
    return terms


async def _check(audience: Audience, problems: list[str], *, where: str) -> None:
    terms, asked = audience.terms, next(word for word in ("table", "query", "file") if getattr(audience.terms, word))
    try:
        columns = await audience.columns()
    except Rejected as error:
        problems.append(f"{where}.{asked}: {error.message}")
        return
    known = {column.name: column for column in columns}
    _check_columns(terms, known, audience.dialect, problems, where=where)
    key = known.get(terms.key)
    if key is not None and audience.dialect != "sqlite" and key_kind(key) is None:
        problems.append(no_key(terms, key.type).message.replace("audience", where, 1))
    if problems:
        return
    for word, tried in (("key", audience.try_key), (asked, audience.try_fields)):
        try:
            await tried()
        except Rejected as error:
            problems.append(f"{where}.{word}: {error.message}")


def _check_columns(
    terms: AudienceTerms, known: Mapping[str, Column], dialect: Dialect, problems: list[str], *, where: str
) -> None:
    wanted = [("key", terms.key), *((f"fields.{one.name}", one.column) for one in terms.fields)]
    for path, name in [*wanted, *(("columns", name) for name in terms.columns)]:
        if name not in known:
            near = get_close_matches(name, known, n=3) or list(known)[:10]
            problems.append(f"{where}.{path}: there is no column {name}; there is {', '.join(near)[:500]}")
    for one in terms.fields:
        column = known.get(one.column)
        if column is not None and cast_of(dialect, one.type, column) is None:
            why = f"{one.column} is {column.type.lower()}, which cannot be read as {one.type}"
            problems.append(f"{where}.fields.{one.name}: {why}; declare another type, or write a query that casts it")
