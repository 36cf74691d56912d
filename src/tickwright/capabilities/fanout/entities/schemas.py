"""Requests and views of fan-out: typed bodies, lines of an import, the party of an entity, and what is shown.

REST, NDJSON and CSV are read here, so that one rule has one error. Whether modules and partners exist is checked in the
transaction that writes.

A party is part of messages, logs of brokers and dead letters. So it contains references to secrets, ``${env:NAME}``,
and the consumer resolves them for the call, for hosts that its operator declared. A value that looks like a secret by
its key and is not such a reference is refused. By SQL it can be written nevertheless; then it is masked when shown.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from msgspec import Meta

from tickwright.capabilities.fanout.windows import MODULE_NAME, parse_modules
from tickwright.domain import strict_json
from tickwright.domain.errors import Rejected
from tickwright.domain.masking import masked_json, read_json
from tickwright.domain.secrets import MASK, REFERENCE
from tickwright.ports.views import AccessGranting, Reason, UserData

PARTY_BYTES_MAX = 65_536
POINTER_CHARS_MAX = 300
_SECRET_WORDS = ("token", "password", "secret", "apikey", "authorization", "credential", "privatekey")
_SQUEEZED = re.compile("[^a-z0-9]")
_PLAIN_URL = re.compile(r"https?://[^\s@?#]+")
"""An address without a user or a query, as in ``tokenUrl`` and ``{"tokens": "https://…"}``: not a secret."""
_USER = re.compile(r"://([^/?#\s]*)@")
_LONG_NUMBER = re.compile("(?<![0-9])[0-9]{300}")
"""Part of a number that not every reader of JSON accepts."""


def check_party(party: Mapping[str, Any]) -> str:
    """Return the party as JSON text if it can be stored and sent.

    It must come from JSON that was read strictly: no NUL, no unpaired surrogates, no number that cannot be stored.

    Raises:
        Rejected: ``party_too_large``, ``plain_secret`` with the pointer of the first one. Permanent.
    """
    text = json.dumps(party, ensure_ascii=False, allow_nan=False)
    if len(text.encode()) + _unfolded(party) > PARTY_BYTES_MAX:
        raise Rejected("party_too_large", f"party: at most {PARTY_BYTES_MAX} bytes as JSON text", field="party")
    for pointer in plain_secrets(party):
        shown = f"/party{pointer}"[:POINTER_CHARS_MAX]
        raise Rejected(
            "plain_secret",
            f"{shown} looks like a secret in plain text, and a party is in every message; write ${{env:NAME}} there, "
            "and set TICKWRIGHT_SECRET_NAME and TICKWRIGHT_SECRET_HOSTS_NAME where the fanout-consumer runs",
            field="party",
            pointer=shown,
        )
    return text


def _unfolded(value: Any) -> int:
    """Return how many bytes longer numbers become: PostgreSQL writes them without an exponent."""
    if isinstance(value, float):
        text = repr(value)
        return max(0, len(format(Decimal(text), "f")) - len(text)) if "e" in text else 0
    if isinstance(value, Mapping):
        return sum(_unfolded(item) for item in value.values())
    return sum(_unfolded(item) for item in value) if isinstance(value, list) else 0


def plain_secrets(value: Any, pointer: str = "") -> Iterator[str]:
    """Yield the JSON pointers of values that look like a secret in plain text."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            place = f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
            if _is_secret(name) and any(_is_plain(text) for text in _texts(item)):
                yield place
            else:
                yield from plain_secrets(item, place)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from plain_secrets(item, f"{pointer}/{number}")
    elif isinstance(value, str) and _has_user(value):
        yield pointer


def _is_secret(name: str) -> bool:
    squeezed = _SQUEEZED.sub("", name.lower())
    return any(word in squeezed for word in _SECRET_WORDS)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _is_plain(text: str) -> bool:
    return bool(text) and REFERENCE.search(text) is None and _PLAIN_URL.fullmatch(text) is None


def _has_user(text: str) -> bool:
    """Return whether a URL in the text has a user or a password that is not a reference."""
    return any(REFERENCE.search(user) is None for user in _USER.findall(text))


def masked(text: str) -> str:
    """Return a party's JSON text with ``***`` for every secret that was written into it by SQL.

    A number that not every reader of JSON accepts becomes a text.
    """
    try:
        party = read_json(text)
        changed = _LONG_NUMBER.search(text) is not None or next(plain_secrets(party), None) is not None
        return json.dumps(_mask(party), ensure_ascii=False) if changed else text
    except RecursionError:  # nested too deep to be checked for secrets
        return json.dumps({MASK: MASK})


def masked_hosts(text: str) -> str:
    """Return a party's JSON text for viewers and the audit: masked, with only the hosts of its addresses."""
    return masked_json(masked(text))


def _mask(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: MASK if _is_secret(name) and any(_is_plain(text) for text in _texts(item)) else _mask(item)
            for name, item in value.items()
        }
    if isinstance(value, str):
        return MASK if _has_user(value) else value
    return [_mask(item) for item in value] if isinstance(value, list) else value


CODE_CHARS_MAX = 100
MODULES_BYTES_MAX = 2_000
MODULES_MAX = 50
PARTNER_CHARS_MAX = 50
COLUMNS = ("code", "party", "is_polling_enabled", "polling_enabled_modules", "partner")
_CODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.*@+-]{0,99}")
_FLAGS = {"": True, "true": True, "t": True, "1": True, "false": False, "f": False, "0": False}

ModuleNames = Annotated[str, Meta(description='Names with commas between, such as "LOCATIONS,TARIFFS"')]
PartnerName = Annotated[str, Meta(min_length=1, max_length=PARTNER_CHARS_MAX, pattern="^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class EntityRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """All fields of an entity; omitted ones get their defaults.

    Attributes:
        party: Messages contain it unchanged; secrets are written ``${env:NAME}``. At most 64 KiB.
    """

    party: dict[str, Any] = {}
    is_polling_enabled: bool = True
    polling_enabled_modules: ModuleNames | list[str] = ""
    partner: PartnerName | None = None


class EntityLine(EntityRequest, forbid_unknown_fields=True, kw_only=True):
    """A line of an import: an entity and its code."""

    code: str


class ModuleRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """All settings of a module, as in ``[modules.NAME]`` of a configuration file; omitted ones get their defaults."""

    every: Annotated[str, Meta(examples=["15m"], description="Length of a window, whole seconds from 1s to 1d")]
    timeout: Annotated[str, Meta(examples=["60s"], description="Of one run, from 10ms to 25m")] = "60s"
    gated: bool = False
    target: Annotated[
        str | None, Meta(examples=["remote:ocpi"], description="remote:POOL: remote workers run it, not a function")
    ] = None


class NewEntity(msgspec.Struct, frozen=True):
    """An entity to be written, checked except for what needs the database; ``party`` is JSON text."""

    code: str
    party: str
    is_polling_enabled: bool
    modules: tuple[str, ...]
    partner: str | None


_line = msgspec.json.Decoder(EntityLine)


def check_entity(code: str, request: EntityRequest) -> NewEntity:
    """Return the checked entity of a request.

    Raises:
        Rejected: ``invalid_entity_code``, ``invalid_modules``, or the errors of :func:`check_party`. Permanent.
    """
    return NewEntity(
        check_code(code),
        check_party(request.party),
        request.is_polling_enabled,
        check_modules(request.polling_enabled_modules),
        request.partner,
    )


def read_line(line: bytes) -> NewEntity:
    """Return the checked entity of a line of NDJSON.

    Raises:
        Rejected: Syntax and unknown fields 400, values 422. Permanent.
    """
    read = strict_json.decode(line, _line)
    return check_entity(read.code, read)


def check_code(code: str) -> str:
    """Return a valid entity code; it becomes part of keys that have ``:`` between their parts.

    Raises:
        Rejected: ``invalid_entity_code``. Permanent.
    """
    if not _CODE.fullmatch(code):
        raise Rejected(
            "invalid_entity_code",
            f"code: 1 to {CODE_CHARS_MAX} letters, digits or '_', '.', '*', '@', '+', '-', a letter or digit first; "
            "neither ':' nor '/'",
            field="code",
        )
    return code


def check_modules(given: str | list[str]) -> tuple[str, ...]:
    """Return the names of modules in capitals, without repetitions.

    Raises:
        Rejected: ``invalid_modules``. Permanent.
    """
    names = parse_modules(given if isinstance(given, str) else ",".join(given))
    bad = next((name for name in names if not MODULE_NAME.fullmatch(name)), None)
    if bad is not None:
        problem = f"{strict_json.quoted(bad)} is no name of a module; such as LOCATIONS,TARIFFS"
    elif len(names) > MODULES_MAX or len(",".join(names)) > MODULES_BYTES_MAX:
        problem = f"at most {MODULES_MAX} names, {MODULES_BYTES_MAX} characters in all"
    else:
        return names
    raise Rejected("invalid_modules", f"polling_enabled_modules: {problem}", field="polling_enabled_modules")


def entity_of_row(row: Mapping[str, str]) -> NewEntity:
    """Return the checked entity of a CSV row; ``party`` is JSON in its cell, an empty cell is the default.

    Raises:
        Rejected: ``invalid_value``, or as :func:`check_entity`. Permanent.
    """
    flag = _FLAGS.get(row.get("is_polling_enabled", "").strip().lower())
    if flag is None:
        raise Rejected("invalid_value", "is_polling_enabled: write true or false", field="is_polling_enabled")
    party = strict_json.loads(row["party"].encode()) if row.get("party") else {}
    if not isinstance(party, dict):
        raise Rejected("invalid_value", "party: write a JSON object", field="party")
    request = EntityRequest(
        party=party,
        is_polling_enabled=flag,
        polling_enabled_modules=row.get("polling_enabled_modules", ""),
        partner=row.get("partner") or None,
    )
    return check_entity(row["code"], request)


# Views of fan-out, for the REST API and ``--json``: entities, modules, both against windows, and dead letters.


class EntityView(msgspec.Struct, kw_only=True):
    """An entity without its party.

    Attributes:
        polling_enabled_modules: Names with commas between, as in the column.
        partner: Its limits and breaker apply to calls for this entity.
        config_version: One more with each change of the row; messages carry it.
    """

    code: str
    is_polling_enabled: bool
    polling_enabled_modules: str
    partner: str | None
    config_version: int
    created_at: datetime
    updated_at: datetime


class EntityModule(msgspec.Struct, kw_only=True):
    """Results of one entity for one module. Runs that are not written to the database yet are missing.

    Attributes:
        known: Whether the module exists; no entity is polled for an unknown one.
        every: Length of a window; null for an unknown module, as are the windows.
        paused: The module is paused for every entity.
        last_window_at: The newest window with a successful run.
        last_success_at: When that run began: ``LastExecutedAt`` of the next one.
        running_window_at: Window of the current run.
        failures: Failed runs since the last success.
    """

    name: str
    known: bool
    every: str | None
    paused: bool
    last_window_at: datetime | None
    last_success_at: datetime | None
    running_since: datetime | None
    running_window_at: datetime | None
    failures: int
    last_error: str | None
    last_error_at: datetime | None
    window_at: datetime | None
    next_window_at: datetime | None


class EntityDetail(EntityView, UserData, AccessGranting, kw_only=True):
    """One entity.

    Attributes:
        party: Messages contain it unchanged. A secret that was written into it by SQL is shown as ``***``.
        modules: Those that it is polled for, in its order, then others that it was polled for before.
    """

    USER_DATA: ClassVar[tuple[str, ...]] = ("party",)
    party: Any
    modules: list[EntityModule]
    payload_hidden: bool = False

    def masked(self) -> Self:
        """Return it with only the hosts of the addresses in its party."""
        if not isinstance(self.party, msgspec.Raw):
            return self
        return msgspec.structs.replace(self, party=msgspec.Raw(masked_hosts(bytes(self.party).decode()).encode()))


class StoredEntity(msgspec.Struct):
    """The answer to a put."""

    entity: EntityView
    created: bool


class EntityExplanation(msgspec.Struct):
    """Why an entity is polled for a module now, or is not; ``status`` is not_polled, running, failing, ran or due."""

    entity: str
    module: str
    status: str
    summary: str
    reasons: list[Reason]


class ModuleView(msgspec.Struct, kw_only=True):
    """A module: what entities are polled for.

    Attributes:
        target: ``remote:POOL`` if remote workers run it; none for a program's function.
        gated: Published only by schedulers that have ``ENABLE_<NAME>_POLLING=true`` in their environment.
        set_by: ``default``, ``app``, ``operator`` or ``sql``; a program replaces the first two only.
        paused_at: Since when no entity is polled for it.
    """

    name: str
    every: str
    timeout: str
    gated: bool
    target: str | None
    set_by: str
    paused_at: datetime | None
    created_at: datetime
    updated_at: datetime


class ModuleWindow(msgspec.Struct, kw_only=True):
    """Consumers' counts of one window of a module.

    Attributes:
        failed: Failed runs, those that were retried included.
        superseded: Messages that arrived when a newer window had run already.
        expired: Messages dropped after the window's end without a success.
    """

    window_at: datetime
    succeeded: int
    failed: int
    superseded: int
    expired: int


class ModuleDetail(ModuleView, kw_only=True):
    """One module.

    Attributes:
        entities_stale: Of these, without a success for three windows, as the alert ``fanout_stale`` counted last.
        windows: The current one, and the three before it.
    """

    entities: int
    entities_stale: int
    windows: list[ModuleWindow]


class StoredModule(msgspec.Struct):
    """The answer to a put."""

    module: ModuleView
    created: bool


WindowState = Literal["open", "done", "partly", "missed", "idle"]


class MatrixWindow(ModuleWindow, kw_only=True):
    """One window of a module.

    Attributes:
        ends_at: Start of the next one.
        state: ``open`` for the current one; ``done`` when it succeeded for as many entities as are polled now,
            ``partly`` for fewer, ``missed`` for none; ``idle`` when there was nothing to poll and no message, as before
            the module existed.
        published: Entities it was published for, of the last two windows, when marks are in PostgreSQL. Null for older
            ones, and with Redis.
    """

    ends_at: datetime
    state: WindowState
    published: int | None


class ModuleWindows(msgspec.Struct, kw_only=True):
    """A module and its windows, the newest first.

    Attributes:
        expected: Entities that are polled for it now.
        last_success_window_at: The newest window with a successful run.
        more: There are older windows in the range; 500 are shown.
    """

    name: str
    every: str
    paused: bool
    expected: int
    last_success_window_at: datetime | None
    windows: list[MatrixWindow]
    more: bool


class WindowMatrix(msgspec.Struct, kw_only=True):
    """Modules against windows."""

    at: datetime
    since: datetime
    modules: list[ModuleWindows]


class EntityState(msgspec.Struct, kw_only=True):
    """An entity and the modules that it is polled for."""

    code: str
    is_polling_enabled: bool
    partner: str | None
    modules: list[EntityModule]


class DeadTaskView(msgspec.Struct, UserData, kw_only=True):
    """A dead-lettered task.

    Attributes:
        id: Of the message; null if it has none: then only ``all`` requeues it.
        entity_code: If the body can be read, as ``task_type``.
        reason: A code; ``delivery_limit``, ``rejected`` or ``expired`` if RabbitMQ itself moved it.
        body: At most 64 KiB, escaped; values that look like secrets are ``***``.
    """

    USER_DATA: ClassVar[tuple[str, ...]] = ("body",)
    id: str | None
    entity_code: str | None
    task_type: str | None
    reason: str
    error_message: str
    died_at: datetime | None
    body: str | None
    payload_hidden: bool = False


class DeadTaskPage(msgspec.Struct):
    """The oldest dead letters, and how many there are in all."""

    items: list[DeadTaskView]
    count: int
