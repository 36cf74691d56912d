"""Campaigns: the fields of every batch, an audience, an expression and an action.

::

    {"type": "AUTOMATIC", "date_time_execution": "2026-11-01T09:00", "time_zone": "Europe/Kyiv",
     "restartable": true, "restartable_unit": 6, "restartable_unit_type": "HOURS", "product_codes": ["LOAN"],
     "audience": {"source": "crm", "table": "clients", "key": "id", "fields": {"age": "int"}},
     "expression": "client.age > 25",
     "action": {"target": "python:apply",      # or https://… amqp:… kafka:… pg:…
                "release": "finished"}}        # or "chunk": as soon as a chunk is done

The fields of every batch are in :mod:`.schema`, those of an audience in :mod:`..audience.schema`. A definition is
refused whole, with every mistake, before anything is written; a mistake in the expression has its line and column. The
source of the audience is queried as well: a table or a field that is not there is a mistake of the definition.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import msgspec

from tickwright.capabilities.batches.audience.audience import Audiences, check_audience
from tickwright.capabilities.batches.audience.schema import AudienceSettings, read_audience
from tickwright.capabilities.batches.definitions.batches import SQL, Batches, check_name
from tickwright.capabilities.batches.definitions.schema import (
    Allow,
    Draft,
    Mistake,
    Mistakes,
    destination,
    field_readers,
    settings_of,
)
from tickwright.capabilities.batches.views import BatchDetail
from tickwright.domain.errors import Rejected
from tickwright.domain.field_readers import one_of
from tickwright.ports.batches import Judge
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import UserData, raw
from tickwright.store.pool import Pool

EXAMPLES = 10
WHAT = "campaign"
CAMPAIGN_FIELDS = ("audience", "expression", "action")


class StoredCampaign(msgspec.Struct):
    """The answer to a put; ``changed`` is false where the definition was the same, and then there is no new version."""

    campaign: BatchDetail
    created: bool
    changed: bool


class CheckedCampaign(msgspec.Struct):
    """What is wrong with a definition: nothing, where it is valid."""

    valid: bool
    problems: list[Mistake]


class SelectedClient(msgspec.Struct, UserData):
    """One client that would be selected, as an action would carry it."""

    USER_DATA: ClassVar[tuple[str, ...]] = ("client",)
    client_id: str
    client: Any
    payload_hidden: bool = False


class DryRun(msgspec.Struct, kw_only=True):
    """What an execution would do now, without doing it.

    Attributes:
        members: Of the audience.
        selected: Clients that the expression selects.
        missing: Not selected because a field that decides is not there.
        skipped: Could not be judged.
        examples: Up to ten of the selected.
        problems: Up to ten of the skipped, each with its ``client_id``.
    """

    members: int
    selected: int
    missing: int
    skipped: int
    examples: list[SelectedClient]
    problems: list[dict[str, str]]


class Selection(NamedTuple):
    """The audience of a campaign, and its expression over the fields of that; ``None`` for one that has a mistake."""

    audience: AudienceSettings | None
    judge: Judge | None


def read_campaign(
    document: Mapping[str, Any], mistakes: Mistakes, allow: Allow
) -> tuple[Draft | None, AudienceSettings | None]:
    """Return the campaign that ``document`` describes, or ``None`` and every mistake in ``mistakes``.

    Its audience is returned beside it: it may be right where the campaign is not. Takes up to 100 ms, in which the
    expression is compiled. No source is queried.
    """
    rest = {name: value for name, value in document.items() if name not in CAMPAIGN_FIELDS}
    values = mistakes.read(rest, field_readers(allow))
    selection = read_selection(document, mistakes)
    action = _read_action(document, mistakes, allow)
    settings = settings_of(values, mistakes)
    if settings is None or selection.audience is None or selection.judge is None:
        return None, selection.audience
    own = {"audience": document["audience"], "expression": document["expression"], "action": action}
    return Draft(settings, own), selection.audience


def read_selection(document: Mapping[str, Any], mistakes: Mistakes) -> Selection:
    """Return the selection of ``document``, and add what is wrong with audience and expression to ``mistakes``."""
    audience = judge = None
    if document.get("audience") is None:
        mistakes.add("audience", "missing; say where the clients are")
    else:
        audience = mistakes.attempt("audience", read_audience, document["audience"])
    from tickwright.capabilities.batches.expressions import compile_expression  # CEL, for those who read definitions

    text = document.get("expression")
    if not isinstance(text, str):
        mistakes.add("expression", 'missing; write one, such as "client.age > 25"; true selects everybody')
        return Selection(audience, judge)
    try:
        judge = compile_expression(text, {} if audience is None else audience.types)
    except Rejected as error:  # beside a wrong audience only mistakes that do not depend on fields are reported
        if audience is not None or error.code not in {"unknown_field", "expression_type", "expression_not_boolean"}:
            mistakes.add_error(error, "expression")
    return Selection(audience, judge)


def _read_action(document: Mapping[str, Any], mistakes: Mistakes, allow: Allow) -> dict[str, Any]:
    action = document.get("action")
    if not isinstance(action, Mapping):
        mistakes.add("action", 'missing; write an object, such as {"target": "python:apply"}')
        return {}
    readers = {"target": destination(allow), "release": one_of("finished", "chunk")}
    values = mistakes.read(action, readers, inside="action")
    if "target" not in action:
        mistakes.add("action.target", 'missing; write a destination, such as "https://…" or "python:apply"')
    return {"target": values.get("target"), "release": values.get("release", "finished")}


class Campaigns:
    """Create, edit, check and try campaigns; :class:`Batches` has what every kind of batch can do."""

    def __init__(self, pool: Pool, batches: Batches, audiences: Audiences, allow: Allow) -> None:
        self._pool, self._batches, self._audiences, self._allow = pool, batches, audiences, allow

    async def create(self, document: Mapping[str, Any], *, caller: Caller) -> BatchDetail:
        """Create a campaign; it is ``IDLE`` and its version is 1.

        Raises:
            Rejected: ``invalid_campaign``, or the code that all mistakes have, with every mistake; what
                :meth:`Batches.create` says. Permanent.
            Unavailable: The source does not answer. Retry.
        """
        name, definition = _named(document)
        return await self._batches.create(name, await self._read(definition), caller=caller)

    async def put(self, name: str, document: Mapping[str, Any], *, caller: Caller) -> StoredCampaign:
        """Create a campaign or replace its definition: a new version. The same definition again changes nothing.

        A ``name`` in the document has to be the same. A ``version`` there is the one that is edited, so that no other
        edit is overwritten.

        Raises:
            Rejected: As :meth:`create`, and what :meth:`Batches.put` says. Permanent.
            Contended: ``version_conflict``. Retry after reading it again.
            Unavailable: The source does not answer. Retry.
        """
        check_name(name)
        written, definition = _named({"name": name, **document})
        if written != name:
            raise Rejected("invalid_name", f"name: it is called {name} here; leave the name out", field="name")
        expected = definition.pop("version", None)
        if isinstance(expected, bool) or not isinstance(expected, int | None):
            raise Rejected("invalid_version", "version: the number of the version that is edited", field="version")
        draft = await self._read(definition)
        put = await self._batches.put(name, draft, caller=caller, expected=expected)
        return StoredCampaign(put.batch, put.created, put.changed)

    async def check(self, document: Mapping[str, Any]) -> CheckedCampaign:
        """Return what is wrong with a definition, without saving it.

        Raises:
            Unavailable: The source does not answer. Retry.
        """
        mistakes = Mistakes(WHAT)
        definition = dict(document)
        name = definition.pop("name", None)
        definition.pop("version", None)
        if name is not None:
            mistakes.attempt("name", check_name, name if isinstance(name, str) else "")
        await self._check(definition, mistakes)
        return CheckedCampaign(not mistakes.found, mistakes.found)

    async def dry_run(self, name: str, changes: Mapping[str, Any], *, caller: Caller) -> DryRun:
        """Count the clients that a campaign would select now, and return ten of them; nothing is written or sent.

        ``changes`` are an ``audience`` and an ``expression`` to try instead of its own. Another audience may be any
        query on any source, so only an admin may try one.

        Raises:
            Rejected: ``campaign_not_found`` (404); ``forbidden`` (403); ``invalid_campaign``, the codes of expressions
                and audiences. Permanent.
            Unavailable: The source does not answer in time. Retry.
        """
        if "audience" in changes and caller.role < Role.ADMIN:
            raise Rejected("forbidden", "another audience is for the role admin; leave it out", status=403)
        mistakes = _only_selection(changes)
        saved = (await self._batches.get(name)).definition
        return await self._count({**saved, **changes}, mistakes)

    async def dry_run_unsaved(self, document: Mapping[str, Any]) -> DryRun:
        """Do the same for an ``audience`` and an ``expression`` that are not saved; for admins, as above."""
        return await self._count(document, _only_selection(document))

    async def _count(self, document: Mapping[str, Any], mistakes: Mistakes) -> DryRun:
        selection = await asyncio.to_thread(read_selection, document, mistakes)
        mistakes.raise_found()
        assert selection.audience is not None  # noqa: S101  # nothing was refused
        now = await self._pool.fetchval(SQL["now"])
        async with self._audiences.open(selection.audience) as audience:
            found = await audience.count(selection.judge, now, limit=EXAMPLES)
        examples = [SelectedClient(action.client_id, raw(action.client)) for action in found.examples]
        return DryRun(**{**found._asdict(), "examples": examples})

    async def _read(self, definition: Mapping[str, Any]) -> Draft:
        mistakes = Mistakes(WHAT)
        draft = await self._check(definition, mistakes)
        mistakes.raise_found()
        assert draft is not None  # noqa: S101  # nothing was refused
        return draft

    async def _check(self, definition: Mapping[str, Any], mistakes: Mistakes) -> Draft | None:
        """Read a definition, in a thread because CEL compiles, and query its audience's source."""
        draft, audience = await asyncio.to_thread(read_campaign, definition, mistakes, self._allow)
        if audience is not None:
            try:
                await check_audience(self._audiences, definition["audience"])
            except Rejected as error:
                mistakes.add_error(error, "audience")
        if draft is not None:
            await self._refuse_encrypted(draft.document, mistakes)
        return draft

    async def _refuse_encrypted(self, document: Mapping[str, Any], mistakes: Mistakes) -> None:
        """Add a mistake for each encrypted task type of which the campaign would make jobs: it has no envelopes."""
        targets = {"action.target": document["action"].get("target"), "on_finished": document.get("on_finished")}
        jobs = {field: to.removeprefix("python:") for field, to in targets.items() if to and to.startswith("python:")}
        found = await self._pool.fetchval(SQL["encrypted_types"], [*jobs.values()]) if jobs else ()
        for field, name in jobs.items():
            if name in found:
                text = f"the task type {name} is encrypted, and a campaign makes plain payloads; name another type"
                mistakes.add(field, text)


def _only_selection(document: Mapping[str, Any]) -> Mistakes:
    """Return a mistake for each field that a dry run does not use."""
    mistakes = Mistakes(WHAT)
    for field in sorted(document.keys() - {"audience", "expression"}):
        mistakes.add(field, "unknown key; a dry run tries another audience or expression")
    return mistakes


def _named(document: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name in a document, and the rest of it."""
    definition = dict(document)
    name = definition.pop("name", None)
    if not isinstance(name, str):
        raise Rejected("invalid_name", "name: missing; 1 to 100 letters, digits, '_', '.' or '-'", field="name")
    return name, definition
