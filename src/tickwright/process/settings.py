"""What a process is told from outside: the environment, read once, every mistake named at once.

The names are the public contract. Nothing else in the package reads the environment, and nothing
here is ever printed with a password in it.
"""

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from pydantic import BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from tickwright.domain.addresses import AllowList
from tickwright.domain.admission import parse_hosts, parse_networks
from tickwright.domain.errors import Rejected
from tickwright.domain.time_texts import parse_duration
from tickwright.process.secrets import SECRET, DeclaredSecrets
from tickwright.rest.admission import PROBES_LIMITS, ListenerLimits
from tickwright.store.dsn import check_primary_url
from tickwright.transports.objectstore.locations import parse_place

PREFIX = "TICKWRIGHT_"
OUTSIDE = frozenset({"TICKWRIGHT_PG_BIN"})
"""Names that other rooms read for themselves: the embedded server's programs."""

_INHERITED = ("TICKWRIGHT_TEST_", "TICKWRIGHT_EXAMPLE_", SECRET)


def _text(parse: Callable[[str], object], *, keep: bool = False) -> BeforeValidator:
    """Read a text by ``parse``; ``keep`` only checks it. Our own errors become pydantic's, so that all are heard."""

    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            parsed = parse(value)
        except Rejected as error:
            raise ValueError(error.message) from None
        return value if keep else parsed

    return BeforeValidator(read)


def parse_options(text: str) -> dict[str, str]:
    """Return the JSON object of texts that ``text`` is.

    Raises:
        ValueError: It is none; the value, which may hold a password, is not repeated. Permanent.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        raise ValueError('write a JSON object of texts, such as {"security.protocol": "SSL"}') from None


def _check_web_url(text: str) -> None:
    if not text.startswith(("http://", "https://")):
        raise ValueError("write http://HOST:PORT or https://HOST")
    if "@" in text:
        raise ValueError("write it without user and password; the key is TICKWRIGHT_API_KEY")


def _default_home() -> Path:
    return Path("/var/lib/tickwright") if os.geteuid() == 0 else Path("~/.tickwright")


@dataclass(frozen=True, slots=True)
class Bind:
    """An address to listen at, written ``HOST:PORT``.

    Attributes:
        host: Name or address, without brackets.
        port: 0 for any free port.
    """

    host: str = "127.0.0.1"
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> "Bind":
        """Return the address that ``text`` names; ``:8420`` and ``8420`` listen on loopback only.

        Raises:
            ValueError: It is none. Permanent.
        """
        host, _, port = text.rpartition(":")
        if not port.isdigit() or int(port) > 65535:
            raise ValueError("write HOST:PORT, such as 127.0.0.1:8420 or [::]:8420")
        return cls(host.strip("[]") or "127.0.0.1", int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _check_amqp_url(url: str) -> None:
    """Refuse what can never be RabbitMQ; nothing of the URL is repeated, for it may hold a password."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"amqp", "amqps"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise Rejected(
            "invalid_settings", "write amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps:// for TLS; %2F is the host /"
        )


_PREFIX_STEPS = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*){1,8}")
_PREFIX_CHARS_MAX = 100
_TAKEN_STEPS = frozenset({"v1", "healthz", "readyz", "metrics", "assets"})


def _check_prefix(text: str) -> None:
    if not text:  # the default, which is checked like any other
        return
    sound = len(text) <= _PREFIX_CHARS_MAX and _PREFIX_STEPS.fullmatch(text)
    if not sound or text.split("/")[1] in _TAKEN_STEPS:
        raise ValueError("write /NAME without a slash at its end, such as /tickwright; /v1 and the probes are taken")


AmqpUrl = Annotated[SecretStr, _text(_check_amqp_url, keep=True)]
DatabaseUrl = Annotated[SecretStr, _text(check_primary_url, keep=True)]
Duration = Annotated[timedelta, _text(parse_duration)]
BindAddress = Annotated[Bind, NoDecode, _text(Bind.parse)]


class Settings(BaseSettings):
    """The environment of one process. Durations are written with their unit: ``30s``.

    Attributes:
        database_url: ``postgresql://…``, of several servers with commas the one that takes writes; without it the
            embedded PostgreSQL in ``home`` is used.
        direct_database_url: For LISTEN and migrations, where ``database_url`` goes through PgBouncer.
        home: Where the embedded PostgreSQL and the key of ``tickwright up`` live: ``~/.tickwright``, and for root
            ``/var/lib/tickwright``, because PostgreSQL may have to run as somebody who cannot enter root's home.
        amqp_url: RabbitMQ; without it ``amqp:`` destinations wait.
        amqp_prefix: Of our exchanges and queues; two installations on one RabbitMQ need two.
        kafka_bootstrap: Kafka, ``HOST:PORT`` with commas; without it ``kafka:`` destinations wait, and polls go through
            the queue inside PostgreSQL.
        kafka_prefix: Of our topics and transactional ids; two installations on one Kafka need two.
        kafka_replication: Replicas of our topics, 1 to 9; fewer than 3 only with ``kafka_allow_single_broker``.
        kafka_allow_single_broker: Take what Kafka there is, also one broker: for a laptop.
        kafka_partitions: Of the polls' topic when it is made, 1 to 1,000.
        kafka_options: A JSON object of options for reaching the brokers (``security. sasl. ssl. socket.``).
        relay_shards: How many relays share the partners' polls, 1 to 16; the same in every process.
        redis_url: Redis, which says who publishes and who runs what of fan-out; without it PostgreSQL does alone.
        redis_prefix: Of our keys; two installations on one Redis need two.
        fanout_unsigned: What becomes of tasks without a signature: ``refuse``, or ``run`` while schedulers of a release
            that did not sign are still at work.
        fanout_entity_concurrency: Runs of one entity, all its modules together, 1 to 100.
        fanout_slow_percent: Part of a consumer's slots that slow entities hold at most, 1 to 100; at least one slot.
        object_store: Where reports' files are kept: ``file:///FOLDER``, ``s3://BUCKET/PREFIX`` or
            ``gs://BUCKET/PREFIX``; without it the folder ``objects`` in ``home``. Credentials are named as usual
            (``AWS_ACCESS_KEY_ID``, ...).
        report_concurrency: Parts of reports at a time of one function or source in this process, 1 to 100.
        report_merges: Reports that are put together at a time in this process, 1 to 16; and one more, of a type that
            has none there.
        report_memory_mb: Of one merge before it spills to disk, 128 to 65,536.
        report_folder: Where rows are spooled and merged; ``reports`` in ``home`` by default.
        report_prefix: Before the keys of reports in Redis; two installations on one Redis need two.
        campaign_concurrency: Chunks of executions that one consumer works at once, 1 to 64; and one more, of a batch
            that has none there.
        lock_at_most_for: Length of the producer's lease: another one takes over so long after a crash. 2 s to 1 h.
        lock_at_least_for: For so long after it was taken nobody else takes it, though it is given back.
        config: A TOML file, see :mod:`tickwright.process.configfile`.
        app: ``MODULE:APP``, the program whose handlers a worker runs.
        api_bind: Where the API listens.
        path_prefix: Under which browsers see the API and the page, such as ``/tickwright``; requests with and without
            it are answered, so the proxy in front may strip it.
        allowed_hosts: Names under which the API and the probes may be asked for, besides addresses, names without a dot
            and this machine's own.
        proxies: Networks of reverse proxies, whose connections have no cap per address.
        http_connections_max: Of the API's listener, 16 to 100,000; fewer where the process may open fewer files.
        http_connections_per_address: Of one client address there, 16 to 100,000.
        streams_per_key: Streams of the overview that one API key may have open in a process, 1 to 200.
        payloads_from: The lowest role that sees payloads, results and other data of users: ``viewer``, ``operator``
            or ``admin``.
        metrics_bind: Where every role serves ``/healthz``, ``/readyz`` and ``/metrics``.
        api_url: The CLI goes through this API instead of the database.
        api_key: The key that the CLI shows there.
        secrets_dir: Folder of the files that ``${file:NAME}`` may name; each has its hosts in ``NAME.hosts``. Secrets
            in the environment are ``TICKWRIGHT_SECRET_NAME`` with ``TICKWRIGHT_SECRET_HOSTS_NAME``.
        allow_targets: CIDRs and hosts' addresses that callbacks may reach besides public ones.
        concurrency: Attempts that one worker runs at once, 1 to 100,000.
        threads: Synchronous handlers that one worker runs at once, 1 to 1,000.
        connections_max: Connections of one process to PostgreSQL, 4 to 500.
        drain: How long the first Ctrl-C or SIGTERM lets running handlers go on.
        lease: Length of a worker's lease; a crash is noticed after this time. 2 s to 10 s.
        stuck_after: A job that somebody set to ``processing`` by hand goes back when it was not touched for so long.
        notifications: ``off`` to poll once a second instead of using LISTEN.
        traces: Whether spans are recorded; where they go say OpenTelemetry's own variables.
        log_level: ``debug``, ``info``, ``warning`` or ``error``.
        log_format: ``json`` or ``text``; ``text`` by default on a terminal.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, env_ignore_empty=True, extra="forbid")

    database_url: DatabaseUrl | None = None
    direct_database_url: DatabaseUrl | None = None
    home: Path = Field(default_factory=_default_home)
    amqp_url: AmqpUrl | None = None
    amqp_prefix: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = "tickwright"
    kafka_bootstrap: str | None = None
    kafka_prefix: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = "tickwright"
    kafka_replication: Annotated[int, Field(ge=1, le=9)] = 3
    kafka_allow_single_broker: bool = False
    kafka_partitions: Annotated[int, Field(ge=1, le=1000)] = 12
    kafka_options: Annotated[SecretStr, _text(parse_options, keep=True)] = SecretStr("{}")
    relay_shards: Annotated[int, Field(ge=1, le=16)] = 1
    redis_url: SecretStr | None = None
    redis_prefix: Annotated[str, Field(pattern="^[A-Za-z0-9{}._-]{1,100}$")] = "gocpi"
    fanout_unsigned: Annotated[str, Field(pattern="^(refuse|run)$")] = "refuse"
    fanout_entity_concurrency: Annotated[int, Field(ge=1, le=100)] = 4
    fanout_slow_percent: Annotated[int, Field(ge=1, le=100)] = 25
    object_store: Annotated[str | None, _text(parse_place, keep=True)] = None
    report_concurrency: Annotated[int, Field(ge=1, le=100)] = 4
    report_merges: Annotated[int, Field(ge=1, le=16)] = 2
    report_memory_mb: Annotated[int, Field(ge=128, le=65_536)] = 256
    report_folder: Path | None = None
    report_prefix: Annotated[str, Field(pattern="^[A-Za-z0-9{}._-]{0,100}$")] = ""
    campaign_concurrency: Annotated[int, Field(ge=1, le=64)] = 2
    lock_at_most_for: Annotated[Duration, Field(ge=timedelta(seconds=2), le=timedelta(hours=1))] = timedelta(seconds=20)
    lock_at_least_for: Annotated[Duration, Field(ge=timedelta(), le=timedelta(hours=1))] = timedelta()
    config: Path | None = None
    app: Annotated[str | None, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] = None
    api_bind: BindAddress = Bind("127.0.0.1", 8420)
    path_prefix: Annotated[str, _text(_check_prefix, keep=True)] = ""
    payloads_from: Annotated[str, Field(pattern="^(viewer|operator|admin)$")] = "viewer"
    metrics_bind: BindAddress = Bind("127.0.0.1", 8421)
    allowed_hosts: Annotated[str, _text(parse_hosts, keep=True)] = ""
    proxies: Annotated[str, _text(parse_networks, keep=True)] = ""
    http_connections_max: Annotated[int, Field(ge=16, le=100_000)] = 4096
    streams_per_key: Annotated[int, Field(ge=1, le=200)] = 40
    http_connections_per_address: Annotated[int, Field(ge=16, le=100_000)] = 512
    api_url: Annotated[str | None, _text(_check_web_url, keep=True)] = None
    api_key: SecretStr | None = None
    secrets_dir: Path | None = None
    allow_targets: Annotated[str, _text(AllowList.parse, keep=True)] = ""
    concurrency: Annotated[int, Field(ge=1, le=100_000)] = 256
    threads: Annotated[int, Field(ge=1, le=1000)] = 32
    connections_max: Annotated[int, Field(ge=4, le=500)] = 10
    drain: Annotated[Duration, Field(ge=timedelta(), le=timedelta(hours=1))] = timedelta(seconds=20)
    notifications: bool = True
    traces: bool = False
    lease: Annotated[Duration, Field(ge=timedelta(seconds=2), le=timedelta(seconds=10))] = timedelta(seconds=8)
    stuck_after: Annotated[Duration, Field(ge=timedelta(seconds=10), le=timedelta(days=7))] = timedelta(minutes=5)
    log_level: Annotated[str, Field(pattern="^(debug|info|warning|error)$")] = "info"
    log_format: Annotated[str | None, Field(pattern="^(json|text)$")] = None

    @property
    def home_folder(self) -> Path:
        """``home`` with ``~`` resolved."""
        return self.home.expanduser().absolute()

    @property
    def api_listener(self) -> ListenerLimits:
        """The bounds of the API's listener."""
        return replace(
            self.probes_listener,
            connections=self.http_connections_max,
            per_address=self.http_connections_per_address,
        )

    @property
    def probes_listener(self) -> ListenerLimits:
        """The bounds of the probes' listener, which has few clients."""
        return replace(PROBES_LIMITS, proxies=parse_networks(self.proxies), hosts=parse_hosts(self.allowed_hosts))

    @property
    def targets(self) -> AllowList:
        """``allow_targets`` as a value."""
        return AllowList.parse(self.allow_targets)

    @property
    def secrets(self) -> DeclaredSecrets:
        """What documents may refer to."""
        return DeclaredSecrets(os.environ, self.secrets_dir, self.targets)


def load_settings(**given: Any) -> Settings:
    """Return the settings of this process; ``given`` (from the command line) outranks the environment.

    Raises:
        Rejected: ``invalid_settings``; the message has a line per mistake, all at once. Permanent.
    """
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problems = [_problem(entry) for entry in error.errors()]
    else:
        problems = _contradictions(settings)
        if not problems:
            return settings
    raise Rejected("invalid_settings", "\n".join(["the settings are not valid:", *problems]), problems=problems)


def unknown_names(environment: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """Return the variables that look like ours and mean nothing, each with the nearest name that does."""
    known = {PREFIX + name.upper() for name in Settings.model_fields} | OUTSIDE
    names = os.environ if environment is None else environment
    strange = [n for n in names if n.startswith(PREFIX) and n not in known and not n.startswith(_INHERITED)]
    return {name: next(iter(difflib.get_close_matches(name, known, n=1)), None) for name in sorted(strange)}


def secret(name: str) -> str | None:
    """Return the variable that the TOML file refers to in a source's address, ``${env:NAME}``.

    The file is written by the operator of the process. Rows never refer to this: see :mod:`tickwright.process.secrets`.
    """
    return os.environ.get(name)


def _problem(entry: Mapping[str, Any]) -> str:
    """Say what is wrong with one variable; never repeat its value, which may be a secret."""
    name = PREFIX + str(entry["loc"][0]).upper() if entry["loc"] else "environment"
    cause = entry.get("ctx", {}).get("error")
    if entry["type"] == "string_pattern_mismatch" and entry["loc"] == ("app",):
        return f"  {name}: write MODULE:APP, such as shop.jobs:app"
    return f"  {name}: {cause or entry['msg']}"


def _contradictions(settings: Settings) -> list[str]:
    problems = []
    if settings.api_url is not None and settings.api_key is None:
        problems.append("  TICKWRIGHT_API_KEY: missing; TICKWRIGHT_API_URL needs it (tickwright keys create)")
    if settings.direct_database_url is not None and settings.database_url is None:
        problems.append("  TICKWRIGHT_DATABASE_URL: missing; TICKWRIGHT_DIRECT_DATABASE_URL only goes beside it")
    if settings.lock_at_least_for > settings.lock_at_most_for:
        problems.append("  TICKWRIGHT_LOCK_AT_LEAST_FOR: at most TICKWRIGHT_LOCK_AT_MOST_FOR")
    if settings.config is not None and not settings.config.is_file():
        problems.append(f"  TICKWRIGHT_CONFIG: there is no file {settings.config}")
    return problems
