"""The context of the API: the plugins whose routes it serves, and its limits."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from tickwright.plugin import Context, Plugin
from tickwright.ports.caller import Role
from tickwright.store.pool import Pool


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """The limits of one API process.

    Attributes:
        body_bytes_max: Of any body except imports; above it 413.
        body_timeout: From the head of a request to the end of its body.
        idle_timeout: Between two pieces of an import.
        read_timeout: Of the database for one read, with its connection; above it 503 ``query_too_slow``.
        change_timeout: Likewise for one change that is not a bulk action; above it 504 ``outcome_unknown``. Longer than
            the lock timeout, so that a change behind a lock gets ``busy``.
        key_age_max: How long the result for a key is cached; a revoked key works at most this long.
        requests_per_s: Per key and process; above it 429.
        burst: Requests that may come at once before the rate counts.
    """

    body_bytes_max: int = 262_144
    body_timeout: timedelta = timedelta(seconds=20)
    idle_timeout: timedelta = timedelta(seconds=30)
    read_timeout: timedelta = timedelta(seconds=3)
    change_timeout: timedelta = timedelta(seconds=10)
    key_age_max: timedelta = timedelta(milliseconds=800)
    requests_per_s: float = 50_000.0
    burst: int = 50_000


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether this process can work now; ``checks`` has each check's result."""

    ready: bool
    checks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ApiContext:
    """The dependencies of the API.

    Attributes:
        readiness: Called for ``/readyz``; must answer within a second.
        metrics: Prometheus text for ``/metrics``.
        path_prefix: Prefix of this process in browsers, such as ``/tickwright``; empty at the root.
        payloads_from: The lowest role that sees payloads and other user data.
    """

    plugins: Sequence[Plugin]
    plugin_context: Context
    readiness: Callable[[], Awaitable[Readiness]]
    metrics: Callable[[], bytes]
    version: str
    limits: ApiLimits = field(default_factory=ApiLimits)
    path_prefix: str = ""
    payloads_from: Role = Role.VIEWER

    @property
    def pool(self) -> Pool:
        """Connections for keys and sessions."""
        return self.plugin_context.pool

    @property
    def cookie_path(self) -> str:
        """The path of the session's cookie."""
        return f"{self.path_prefix}/"
