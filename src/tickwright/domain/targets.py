"""The grammar of destinations: where a message, a task or an outbox row may be sent.

A destination is typed by a user and ends up in a socket, a routing key or a topic. So a text that two parsers could
read differently is refused, not repaired. :mod:`.addresses` decides whether the address of a host may be reached.

::

    https://HOST[:PORT][/PATH][?QUERY]    http://…  ws://…  wss://…
    amqp:EXCHANGE/ROUTING_KEY             the exchange may be empty (the default exchange)
    kafka:TOPIC    pg:TOPIC    python:NAME    remote:POOL
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Literal

from tickwright.domain.errors import Rejected

URL_CHARS_MAX = 2048
NAME_CHARS_MAX = 255
KAFKA_TOPIC_CHARS_MAX = 249
HOST_CHARS_MAX = 253

WebScheme = Literal["http", "https", "ws", "wss"]
WEB_PORTS: dict[str, int] = {"http": 80, "https": 443, "ws": 80, "wss": 443}

_URL = re.compile(r"(?P<scheme>[a-z]+)://(?P<authority>[^/?]*)(?P<rest>[/?].*)?")
_URL_CHARS = re.compile(r"(?:[A-Za-z0-9\-._~:/?\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})*")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_AMQP_WORD = re.compile(r"[A-Za-z0-9_.:-]*")
_TOPIC = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_HANDLER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class WebTarget:
    """An HTTP callback or a WebSocket gateway.

    Attributes:
        host: Lower case, ASCII, without brackets and without a trailing dot.
        port: 1 to 65535; the scheme's default if none is written.
        url: The canonical, encoded URL; requests use it.
        literal: The address if the host *is* one; it is checked like a resolved one.
    """

    scheme: WebScheme
    host: str
    port: int
    url: str
    literal: IPv4Address | IPv6Address | None = None

    @property
    def tls(self) -> bool:
        """Whether the connection uses TLS."""
        return self.scheme in {"https", "wss"}


@dataclass(frozen=True, slots=True)
class AmqpTarget:
    """An exchange of RabbitMQ and a routing key; an empty exchange is the default one."""

    exchange: str
    routing_key: str
    scheme: Literal["amqp"] = "amqp"


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """A topic of Kafka."""

    topic: str
    scheme: Literal["kafka"] = "kafka"


@dataclass(frozen=True, slots=True)
class PostgresTarget:
    """A topic of the transport inside PostgreSQL."""

    topic: str
    scheme: Literal["pg"] = "pg"


@dataclass(frozen=True, slots=True)
class PythonTarget:
    """A handler that the program registered under a name; never an import path."""

    name: str
    scheme: Literal["python"] = "python"


@dataclass(frozen=True, slots=True)
class RemoteTarget:
    """A pool of remote workers, which claim by the worker protocol; nothing is sent to them."""

    pool: str
    scheme: Literal["remote"] = "remote"


Target = WebTarget | AmqpTarget | KafkaTarget | PostgresTarget | PythonTarget | RemoteTarget
FORMS: Mapping[str, str] = {
    **{scheme: f"{scheme}://…" for scheme in ("https", "http", "wss", "ws")},
    "amqp": "amqp:EXCHANGE/ROUTING_KEY",
    "kafka": "kafka:TOPIC",
    "pg": "pg:TOPIC",
    "python": "python:NAME",
    "remote": "remote:POOL",
}
"""How a target is written, by its scheme. A new scheme needs more places: see docs/architecture.md."""
DESTINATION_SCHEMES = frozenset(FORMS) - {"python", "remote"}
"""Schemes to which a relay sends, and which ``tickwright.outbox`` takes from plain SQL."""
FORMS_SHOWN = ", ".join(form for scheme, form in FORMS.items() if scheme not in {"http", "ws"})
"""For helps and errors; the schemes without TLS are left out, because they must be allowed first."""
OUR_PREFIX = "tickwright"


@lru_cache(maxsize=4096)
def parse_target(text: str) -> Target:
    """Return the destination of ``text``, at most 2,048 characters.

    The last 4,096 results are cached, because a relay parses one per message.

    Raises:
        Rejected: ``invalid_target``; the message says what is wrong and what is allowed. Permanent.

    Invariants:
        TGT-1: an accepted text has one host for every URL parser.
        TGT-2: no accepted text contains a control character, a space, a backslash, or userinfo.
    """
    scheme, colon, rest = text.partition(":")
    if scheme in WEB_PORTS and colon:
        return _web(text)
    match scheme if colon else "":
        case "amqp":
            return _amqp(rest)
        case "kafka":
            return KafkaTarget(_name(rest, _TOPIC, "a Kafka topic", chars_max=KAFKA_TOPIC_CHARS_MAX))
        case "pg":
            return PostgresTarget(_name(rest, _TOPIC, "a pg topic"))
        case "python":
            return PythonTarget(_name(rest, _HANDLER, "a handler name"))
        case "remote":
            return RemoteTarget(_name(rest, _HANDLER, "a pool of remote workers"))
    allowed = " ".join(f"{scheme}://" if scheme in WEB_PORTS else f"{scheme}:" for scheme in FORMS)
    raise _invalid(f"it starts with no known scheme; allowed are {allowed}")


def remote_target(value: object) -> str:
    """Return ``remote:POOL``; the reader of a field that takes nothing else.

    Raises:
        Rejected: ``invalid_target``. Permanent.
    """
    if isinstance(value, str) and isinstance(parse_target(value), RemoteTarget):
        return value
    raise _invalid("write remote:POOL, a pool of remote workers")


def is_internal(target: Target, prefixes: Collection[str]) -> bool:
    """Return whether it is an exchange, queue or topic of Tickwright, as the database's function of this name does."""
    if isinstance(target, AmqpTarget):
        name = target.exchange or target.routing_key
    elif isinstance(target, KafkaTarget | PostgresTarget):
        name = target.topic
    else:
        return False
    return any(name.startswith(f"{prefix}.") for prefix in prefixes)


def _invalid(problem: str) -> Rejected:
    return Rejected(code="invalid_target", message=f"This destination is not valid: {problem}.")


def _name(text: str, pattern: re.Pattern[str], what: str, *, chars_max: int = NAME_CHARS_MAX) -> str:
    if len(text) > chars_max or not pattern.fullmatch(text):
        allowed = f"1 to {chars_max} letters, digits, dots, underscores or hyphens"
        raise _invalid(f"{what} has {allowed} and starts with a letter, a digit (topics only) or an underscore")
    return text


def _amqp(text: str) -> AmqpTarget:
    exchange, slash, routing_key = text.partition("/")
    if not slash:
        raise _invalid("write amqp:EXCHANGE/ROUTING_KEY, or amqp:/QUEUE for the default exchange")
    for part in (exchange, routing_key):
        if len(part) > NAME_CHARS_MAX or not _AMQP_WORD.fullmatch(part):
            form = f"at most {NAME_CHARS_MAX} letters, digits and . _ : - each"
            raise _invalid(f"exchange and routing key have {form}; no slash, and no * or #, which belong in a binding")
    if not exchange and not routing_key:
        raise _invalid("the default exchange needs a routing key: amqp:/QUEUE")
    return AmqpTarget(exchange, routing_key)


def _web(text: str) -> WebTarget:
    if len(text) > URL_CHARS_MAX:
        raise _invalid(f"a URL has at most {URL_CHARS_MAX} characters")
    if not text.isascii():
        raise _invalid("a URL is ASCII; write an international host as xn--… and percent-encode the rest")
    if "#" in text:
        raise _invalid("a URL here has no fragment (#…); it would never be sent")
    if not _URL_CHARS.fullmatch(text):
        raise _invalid("control characters, spaces, quotes, backslashes and bare % are not allowed in a URL")
    parts = _URL.fullmatch(text)
    if parts is None:
        raise _invalid("write SCHEME://HOST[:PORT][/PATH][?QUERY]")
    if "@" in parts["authority"]:
        raise _invalid("user names and passwords do not belong into a URL; sign the callback instead")
    scheme: WebScheme = parts["scheme"]  # type: ignore[assignment]  # one of WEB_PORTS, checked by the caller
    host, port, literal = _authority(parts["authority"], WEB_PORTS[scheme])
    shown = f"[{host}]" if isinstance(literal, IPv6Address) else host
    port_text = "" if port == WEB_PORTS[scheme] else f":{port}"
    path = parts["rest"] or "/"
    url = f"{scheme}://{shown}{port_text}{'' if path[0] == '/' else '/'}{path}"
    return WebTarget(scheme, host, port, url, literal)


def _authority(text: str, default_port: int) -> tuple[str, int, IPv4Address | IPv6Address | None]:
    if text.startswith("["):
        inner, bracket, after = text[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise _invalid("an IPv6 address is written [2001:db8::1] or [2001:db8::1]:8443")
        address = _ipv6(inner)
        return str(address), _port(after[1:] if after else None, default_port), address
    host, colon, port_text = text.partition(":")
    host, literal = _host(host.lower())
    return host, _port(port_text if colon else None, default_port), literal


def _host(text: str) -> tuple[str, IPv4Address | None]:
    if not text or len(text) > HOST_CHARS_MAX:
        raise _invalid(f"a host has 1 to {HOST_CHARS_MAX} characters")
    labels = text.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        form = "letters, digits, hyphens and single dots, without a dot at its end"
        raise _invalid(f"a host is made of {form}; an IPv6 address is written in brackets")
    if not _NUMBER_LABEL.fullmatch(labels[-1]):
        return text, None
    try:
        return text, IPv4Address(text)
    except AddressValueError:
        form = "four decimal numbers (192.0.2.1); octal, hexadecimal and short spellings are not allowed"
        raise _invalid(f"a host that ends in a number is an IPv4 address, written as {form}") from None


def _ipv6(text: str) -> IPv6Address:
    try:
        address = IPv6Address(text)
    except AddressValueError:
        raise _invalid("what is in brackets is not an IPv6 address") from None
    if address.scope_id is not None:
        raise _invalid("an IPv6 address with a zone (%…) means something else on every machine")
    return address


def _port(text: str | None, default_port: int) -> int:
    if text is None:
        return default_port
    if not text.isdigit() or len(text) > 5 or not 1 <= int(text) <= 65535:
        raise _invalid("a port is a number from 1 to 65535")
    return int(text)
