"""What the API is given: the plugins whose routes it serves, and its limits."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from tickwright.api.probes import Readiness
from tickwright.plugin import Context, Plugin
from tickwright.ports.caller import Role
from tickwright.store.pool import Pool


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """The bounds of one API process.

    Attributes:
        body_bytes_max: Of any body but an import's; above it 413.
        body_timeout: From the head of a request to the end of its body.
        idle_timeout: Between two pieces of an import.
        read_timeout: Of the database for one read, a connection included; above it 503 ``query_too_slow``.
        change_timeout: The same for one change that is not of many; above it 504 ``outcome_unknown``. Longer than a
            lock is waited for, so that who waits behind somebody hears ``busy``.
        key_age_max: How long an answer about a key is believed; bounds how long a revoked one works.
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
class ApiContext:
    """Everything that the API answers from.

    Attributes:
        plugins: Whose routes are served.
        installation: What they answer from.
        readiness: Called for ``/readyz``; bounded to a second by the caller that gives it.
        metrics: Prometheus text for ``/metrics``.
        version: Of the product.
        limits: Bounds of this process.
        path_prefix: Under which browsers see this process, such as ``/tickwright``; empty at the root.
        payloads_from: The lowest role that sees payloads and other data of users.
    """

    plugins: Sequence[Plugin]
    installation: Context
    readiness: Callable[[], Awaitable[Readiness]]
    metrics: Callable[[], bytes]
    version: str
    limits: ApiLimits = field(default_factory=ApiLimits)
    path_prefix: str = ""
    payloads_from: Role = Role.VIEWER

    @property
    def pool(self) -> Pool:
        """Connections for keys and sessions."""
        return self.installation.pool

    @property
    def cookie_path(self) -> str:
        """What a browser sends the session's cookie to."""
        return f"{self.path_prefix}/"
