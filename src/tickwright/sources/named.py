"""The sources of one process: each is opened at its first use, and all are closed together.

The scheme of the URL selects the kind of source. A driver is imported at the first use of its kind. All mistakes in the
TOML file are reported at once. A URL is never repeated in an error, because it may contain a password::

    [sources.plt_fund]
    url = "postgresql://reader:${env:FUND_PASSWORD}@db/plt_fund"   # or sqlite:///…, duckdb:///…, files:///…
    connections_max = 5           # queries at once from one process, 1 to 50
    statement_timeout = "10m"     # of one query, 10 ms to 6 h
"""

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import msgspec

from tickwright.domain.errors import Rejected
from tickwright.domain.field_readers import Reader, bad, read_fields, whole
from tickwright.domain.secrets import ResolvedSecrets, Secrets, resolve_references
from tickwright.domain.time_texts import parse_duration
from tickwright.ports.reports import Source

SCHEMES = ("postgresql", "postgres", "sqlite", "duckdb", "files")
SCHEMES_SHOWN = "postgresql://, sqlite:///, duckdb:/// or files:///"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?")
STATEMENT_TIMEOUT_MAX = timedelta(hours=6)
CONNECTIONS_MAX = 50


class SourceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one source.

    Attributes:
        url: May contain ``${env:NAME}``.
        connections_max: Queries at once from this process, 1 to 50; further queries wait.
        statement_timeout: Of one query, 10 ms to 6 h; the shorter one of this and the caller's applies.
    """

    url: str
    connections_max: int = 5
    statement_timeout: timedelta = STATEMENT_TIMEOUT_MAX


class OpenSource(Source, Protocol):
    """A source that can be closed."""

    async def aclose(self) -> None:
        """Release its resources. May be called twice."""


def scheme_of(url: str) -> str:
    """Return the scheme of a source's URL, whose references are already resolved.

    Raises:
        Rejected: ``unknown_source_scheme``. Permanent; the error does not repeat the URL, which may contain a password.
    """
    found = _SCHEME.match(url)
    if found is None or found[1].lower() not in SCHEMES or not found[2]:
        what = f"{found[1][:20]}: is no kind of source that is known" if found else "the url of a source has no scheme"
        raise Rejected("unknown_source_scheme", f"{what}; write {SCHEMES_SHOWN}")
    return found[1].lower()


def path_of(name: str, url: str) -> Path:
    """Return the path in the URL of a file.

    Raises:
        Rejected: ``invalid_source``. Permanent.
    """
    scheme, _, rest = url.partition("://")
    path = unquote(rest)
    if not path.startswith("/") or "\0" in path:
        raise Rejected("invalid_source", f"source {name}: write {scheme}:///absolute/path")
    return Path(path)


class Sources:
    """Sources by name. ``folder`` returns the folder for spilled data, from any thread; ``None``: the system's."""

    def __init__(
        self, terms: Mapping[str, SourceSettings], secrets: Secrets, folder: Callable[[], Path] | None = None
    ) -> None:
        self._terms, self._secrets, self._folder = terms, ResolvedSecrets(secrets), folder
        self._open: dict[str, OpenSource] = {}

    def names(self) -> list[str]:
        """Return the names of all configured sources."""
        return sorted(self._terms)

    def connections_max(self, name: str) -> int:
        """Return how many queries at once this process may send to a source."""
        return self._terms[name].connections_max

    def get(self, name: str) -> Source:
        """Return a source; it connects at its first query.

        Raises:
            Rejected: ``unknown_source``, ``unknown_source_scheme``, ``secret_missing``, ``invalid_source``. Retry once
                the configuration is right.
        """
        if name not in self._terms:
            known = ", ".join(self.names()) or "none"
            raise Rejected("unknown_source", f"there is no [sources.{name}] in this process; known: {known}")
        if name not in self._open:
            self._open[name] = _make(name, self._terms[name], self._secrets, self._folder)
        return self._open[name]

    def mask(self, text: str) -> str:
        """Return ``text`` with the sources' secrets masked: a function may quote its connection."""
        return self._secrets.mask(text)

    async def aclose(self) -> None:
        """Close every source. May be called twice."""
        opened, self._open = self._open, {}
        for source in opened.values():
            await source.aclose()


def _make(name: str, terms: SourceSettings, secrets: ResolvedSecrets, folder: Callable[[], Path] | None) -> OpenSource:
    url: str = resolve_references(terms.url, secrets)
    scheme = scheme_of(url)
    if scheme in {"postgresql", "postgres"}:
        from tickwright.sources.postgres import PostgresSource

        return PostgresSource(name, url, terms, mask=secrets.mask)
    from tickwright.sources.file_sources import FileSource

    return FileSource(name, url, terms, folder)


# ---------------------------------------------------------------------- settings

STATEMENT_TIMEOUT_MIN = timedelta(milliseconds=10)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,49}", re.ASCII)


def read_source(name: str, table: Any, problems: list[str], *, where: str) -> SourceSettings | None:
    """Read a source's settings from ``table``; on mistakes, append them to ``problems`` and return ``None``."""
    before = len(problems)
    if not _NAME.fullmatch(name):
        problems.append(f"{where}: a name has 1 to 50 letters, digits or '_', no digit first")
    if not isinstance(table, Mapping):
        problems.append(f"{where}: write a table, [sources.NAME]")
        return None
    values = read_fields(table, _READERS, problems, where=where)
    if "url" not in table:
        problems.append(f"{where}.url: missing; write {SCHEMES_SHOWN}")
    return None if len(problems) > before else SourceSettings(**values)


def _read_url(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise bad(f"write {SCHEMES_SHOWN}")
    return value


def _read_timeout(value: Any) -> timedelta:
    if not isinstance(value, str):
        raise bad('write a duration with its unit, such as "30s"')
    timeout = parse_duration(value)
    if not STATEMENT_TIMEOUT_MIN <= timeout <= STATEMENT_TIMEOUT_MAX:
        raise bad("between 10ms and 6h")
    return timeout


_READERS: Mapping[str, Reader] = {
    "url": _read_url,
    "connections_max": whole(1, CONNECTIONS_MAX),
    "statement_timeout": _read_timeout,
}
