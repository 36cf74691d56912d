"""Settings of a process: the environment, read once, with every mistake reported at once.

The names are the public contract. No other module reads the environment, and this one prints no password.
:class:`Settings` has what every process needs; each plugin adds a :class:`SettingsPart`, which ``Settings.part``
returns.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, SecretStr

from tickwright.domain.addresses import AllowList
from tickwright.domain.admission import parse_hosts, parse_networks
from tickwright.domain.errors import Rejected
from tickwright.domain.time_texts import parse_duration
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.plugin.secrets import DeclaredSecrets
from tickwright.rest.admission import PROBES_LIMITS, ListenerLimits
from tickwright.store.dsn import check_primary_url

PREFIX = "TICKWRIGHT_"
NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
P = TypeVar("P", bound="SettingsPart")


def text(parse: Callable[[str], object], *, keep: bool = False) -> BeforeValidator:
    """Parse a text with ``parse``; with ``keep`` only check it. Our errors become pydantic's, so all are reported."""

    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            parsed = parse(value)
        except Rejected as error:
            raise ValueError(error.message) from None
        return value if keep else parsed

    return BeforeValidator(read)


def _check_web_url(text: str) -> None:
    if not text.startswith(("http://", "https://")):
        raise ValueError("write http://HOST:PORT or https://HOST")
    if "@" in text:
        raise ValueError("write it without user and password; the key is TICKWRIGHT_API_KEY")


def _default_home() -> Path:
    return Path("/var/lib/tickwright") if os.geteuid() == 0 else Path("~/.tickwright")


@dataclass(frozen=True, slots=True)
class Bind:
    """An address to listen at, written ``HOST:PORT``; the host without brackets, port 0 for any free port."""

    host: str = "127.0.0.1"
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> "Bind":
        """Return the address in ``text``; ``:8420`` and ``8420`` listen only on loopback.

        Raises:
            ValueError: It is not an address. Permanent.
        """
        host, _, port = text.rpartition(":")
        if not port.isdigit() or int(port) > 65535:
            raise ValueError("write HOST:PORT, such as 127.0.0.1:8420 or [::]:8420")
        return cls(host.strip("[]") or "127.0.0.1", int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_PREFIX_STEPS = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*){1,8}")
_PREFIX_CHARS_MAX = 100
_TAKEN_STEPS = frozenset({"v1", "healthz", "readyz", "metrics", "assets"})


def _check_prefix(text: str) -> None:
    if not text:  # the default is checked too
        return
    sound = len(text) <= _PREFIX_CHARS_MAX and _PREFIX_STEPS.fullmatch(text)
    if not sound or text.split("/")[1] in _TAKEN_STEPS:
        raise ValueError("write /NAME without a slash at its end, such as /tickwright; /v1 and the probes are taken")


DatabaseUrl = Annotated[SecretStr, text(check_primary_url, keep=True)]
Duration = Annotated[timedelta, text(parse_duration)]
BindAddress = Annotated[Bind, text(Bind.parse)]


class SettingsPart(BaseModel):
    """Environment variables that belong together. Durations have a unit: ``30s``."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, arbitrary_types_allowed=True)

    def __init__(self, **given: Any) -> None:
        """Take values by name; the environment has the others, in any case. An empty variable counts as unset."""
        environment = {name.upper(): value for name, value in os.environ.items() if value}
        names = {name: PREFIX + name.upper() for name in type(self).model_fields}
        found = {name: environment[variable] for name, variable in names.items() if variable in environment}
        super().__init__(**{**found, **given})

    def contradictions(self) -> list[str]:
        """Return a line for each contradiction between values; each begins with the variable to change."""
        return []


class Settings(SettingsPart):
    """Settings of every process.

    Attributes:
        database_url: ``postgresql://…``; of several servers with commas, the one that takes writes. Without it the
            embedded PostgreSQL in ``home`` is used.
        direct_database_url: For LISTEN and migrations, if ``database_url`` goes through PgBouncer.
        home: Folder of the embedded PostgreSQL and of the key of ``tickwright up``: ``~/.tickwright``, and for root
            ``/var/lib/tickwright``, because PostgreSQL may have to run as a user without access to root's home.
        amqp_prefix: Of our exchanges and queues; two installations on one RabbitMQ need two.
        config: A TOML file, see :mod:`tickwright.process.configfile`.
        app: ``MODULE:APP``, the program whose handlers a worker runs.
        api_bind: Address of the API.
        path_prefix: Prefix of the API and the dashboard in browsers, such as ``/tickwright``. Requests with and without
            it are answered, so the proxy in front may strip it.
        allowed_hosts: Accepted host names of the API and the probes, besides addresses, names without a dot and this
            machine's own.
        proxies: Networks of reverse proxies, whose connections have no limit per address.
        http_connections_max: Of the API's listener, 16 to 100,000; fewer where the process may open fewer files.
        http_connections_per_address: Of one client address there, 16 to 100,000.
        payloads_from: The lowest role that sees payloads, results and other user data: ``viewer``, ``operator`` or
            ``admin``.
        payload_keys: The keys of encrypted payloads by reference, such as ``2026-11=env:KEY_B,2026-05=file:/run/old``;
            the first encrypts, all decrypt.
        metrics_bind: Address of ``/healthz``, ``/readyz`` and ``/metrics``, for every role.
        api_url: The CLI uses this API instead of the database.
        api_key: The CLI's key for it.
        secrets_dir: Folder of the files for ``${file:NAME}``; each has its hosts in ``NAME.hosts``. Secrets in the
            environment are ``TICKWRIGHT_SECRET_NAME`` with ``TICKWRIGHT_SECRET_HOSTS_NAME``.
        allow_targets: CIDRs and hosts' addresses that callbacks may reach besides public ones.
        concurrency: Attempts that one worker runs at once, 1 to 100,000.
        connections_max: Connections of one process to PostgreSQL, 4 to 500.
        drain: Time for running handlers after the first Ctrl-C or SIGTERM.
        lease: Length of a worker's lease; a crash is noticed after this time. 2 s to 10 s.
        notifications: ``off`` to poll once a second instead of using LISTEN.
        traces: Whether to record spans; OpenTelemetry's own variables set where they are sent.
        log_level: ``debug``, ``info``, ``warning`` or ``error``.
        log_format: ``json`` or ``text``; ``text`` by default on a terminal.
    """

    model_config = ConfigDict(extra="allow")  # values for plugins

    database_url: DatabaseUrl | None = None
    direct_database_url: DatabaseUrl | None = None
    home: Path = Field(default_factory=_default_home)
    amqp_prefix: Annotated[str, Field(pattern=NAME_PATTERN)] = "tickwright"
    config: Path | None = None
    app: Annotated[str | None, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] = None
    api_bind: BindAddress = Bind("127.0.0.1", 8420)
    path_prefix: Annotated[str, text(_check_prefix, keep=True)] = ""
    payloads_from: Annotated[str, Field(pattern="^(viewer|operator|admin)$")] = "viewer"
    payload_keys: Annotated[PayloadKeys, text(PayloadKeys.parse)] = NO_KEYS
    metrics_bind: BindAddress = Bind("127.0.0.1", 8421)
    allowed_hosts: Annotated[str, text(parse_hosts, keep=True)] = ""
    proxies: Annotated[str, text(parse_networks, keep=True)] = ""
    http_connections_max: Annotated[int, Field(ge=16, le=100_000)] = 4096
    http_connections_per_address: Annotated[int, Field(ge=16, le=100_000)] = 512
    api_url: Annotated[str | None, text(_check_web_url, keep=True)] = None
    api_key: SecretStr | None = None
    secrets_dir: Path | None = None
    allow_targets: Annotated[str, text(AllowList.parse, keep=True)] = ""
    concurrency: Annotated[int, Field(ge=1, le=100_000)] = 256
    connections_max: Annotated[int, Field(ge=4, le=500)] = 10
    drain: Annotated[Duration, Field(ge=timedelta(), le=timedelta(hours=1))] = timedelta(seconds=20)
    notifications: bool = True
    traces: bool = False
    lease: Annotated[Duration, Field(ge=timedelta(seconds=2), le=timedelta(seconds=10))] = timedelta(seconds=8)
    log_level: Annotated[str, Field(pattern="^(debug|info|warning|error)$")] = "info"
    log_format: Annotated[str | None, Field(pattern="^(json|text)$")] = None

    def __init__(self, **given: Any) -> None:
        """Take values by name, including those of plugins; the environment has the others."""
        super().__init__(**given)

    _parts: dict[type[SettingsPart], SettingsPart] = PrivateAttr(default_factory=dict)

    def part(self, kind: type[P]) -> P:
        """Return the settings of a plugin, read from the environment and from this object's own values.

        Raises:
            pydantic.ValidationError: A value is wrong; ``load_settings`` has reported it before. Permanent.
        """
        if kind not in self._parts:
            given = {name: value for name, value in (self.model_extra or {}).items() if name in kind.model_fields}
            self._parts[kind] = kind(**given)
        return cast("P", self._parts[kind])

    @property
    def home_folder(self) -> Path:
        """``home`` with ``~`` resolved."""
        return self.home.expanduser().absolute()

    @property
    def api_listener(self) -> ListenerLimits:
        """The limits of the API's listener."""
        return replace(
            self.probes_listener,
            connections=self.http_connections_max,
            per_address=self.http_connections_per_address,
        )

    @property
    def probes_listener(self) -> ListenerLimits:
        """The limits of the probes' listener, which has few clients."""
        return replace(PROBES_LIMITS, proxies=parse_networks(self.proxies), hosts=parse_hosts(self.allowed_hosts))

    @property
    def targets(self) -> AllowList:
        """``allow_targets`` as a value."""
        return AllowList.parse(self.allow_targets)

    @property
    def secrets(self) -> DeclaredSecrets:
        """Secrets for references in documents."""
        return DeclaredSecrets(os.environ, self.secrets_dir, self.targets)

    def contradictions(self) -> list[str]:
        """Return contradictions between values that are each valid."""
        problems = []
        if self.api_url is not None and self.api_key is None:
            problems.append("TICKWRIGHT_API_KEY: missing; TICKWRIGHT_API_URL needs it (tickwright keys create)")
        if self.direct_database_url is not None and self.database_url is None:
            problems.append("TICKWRIGHT_DATABASE_URL: missing; TICKWRIGHT_DIRECT_DATABASE_URL only goes beside it")
        if self.config is not None and not self.config.is_file():
            problems.append(f"TICKWRIGHT_CONFIG: there is no file {self.config}")
        return problems


def environment_secret(name: str) -> str | None:
    """Return the variable in the TOML file's reference ``${env:NAME}``, in the address of a source.

    The operator of the process writes the file. Rows never use this: see :mod:`tickwright.plugin.secrets`.
    """
    return os.environ.get(name)
