"""Rotation of payload keys: how many jobs need each key, and the encryption of what waits with the first key.

::

    add the new key everywhere, behind the old one ──▶ put it first ──▶ reencrypt ──▶ list shows 0 of the old one
                                                                                      ──▶ remove the old one

A call of ``reencrypt`` reads one window of jobs in a transaction of its own, so it may be killed anywhere and repeated.
Each job is written under the version that was read: after a claim or an edit in between, it is left as it is. So is a
job that a worker holds: it ends, or the next run finds it.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from msgspec import Meta

from tickwright.domain.envelopes import Purpose
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.domain.strict_json import decode
from tickwright.engine.payload_keys import PayloadKeys
from tickwright.ports.caller import Caller, Role
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.rest.gate import Gate
from tickwright.rest.routing import accepts, answer, answers
from tickwright.store.audit import write_audit
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

WINDOW = 1000
"""Jobs that one call reads."""
Part = Literal["jobs", "dead_letters", "outbox", "dead_messages"]
_SQL = load("tickwright.capabilities.jobs.admin.sql", "payload_keys.sql")
_LONG = load("tickwright.capabilities.jobs.sql", "claims.sql")["allow_long_statement"]
_TABLES = {"jobs": "live", "dead_letters": "dead", "outbox": "outbox", "dead_messages": "outbox_dead"}
_NEXT: Mapping[Part, Part] = {"jobs": "dead_letters", "dead_letters": "outbox", "outbox": "dead_messages"}
_MESSAGES = frozenset({"outbox", "dead_messages"})


class PayloadKeyUse(msgspec.Struct, frozen=True):
    """How many encrypted jobs, schedules and messages need a key; with ``key`` ``null``, how many of these are plain.

    ``held``: this process has it; ``first``: it encrypts with it. A finished job counts for each key that its payload,
    result and progress need; it is deleted with its time of retention.
    """

    key: str | None
    held: bool
    first: bool
    live: int = 0
    dead_letters: int = 0
    finished: int = 0
    schedules: int = 0
    outbox: int = 0


class PayloadKeyUses(msgspec.Struct, frozen=True):
    """The keys of this process in their order, then others that jobs need."""

    items: list[PayloadKeyUse]


class ReencryptRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which window to encrypt again: of what, behind which id."""

    part: Part = "jobs"
    after: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0


class Reencrypted(msgspec.Struct, frozen=True):
    """The result of one call.

    ``left``: changed or locked by others meanwhile; ``unreadable``: their key is missing here, or they were changed
    outside. ``next``: the body of the next call; ``null`` at the end.
    """

    changed: int
    left: int
    unreadable: int
    next: ReencryptRequest | None


class PayloadKeyAdmin:
    """Counts and rotates payload keys, for operators.

    Invariants:
        ENC-6: a job that is written has the payload that it had, under the first key; one that was claimed or edited
            meanwhile is not written.
    """

    def __init__(self, pool: Pool, keys: PayloadKeys, *, probe: Probe = NO_PROBE) -> None:
        self._pool, self._keys, self._probe = pool, keys, probe

    async def uses(self) -> PayloadKeyUses:
        """Return how many jobs need each key. It reads every job of the encrypted types."""
        counts: dict[str | None, dict[str, int]] = {key: {} for key in self._keys.names}
        async with self._pool.acquire() as connection, connection.transaction(readonly=True):
            await connection.execute(_LONG)
            names = await _encrypted(connection)
            rows = await connection.fetch(_SQL["count_jobs"], names)
            counted = [(row["place"], row["key"], row["jobs"]) for row in rows]
            rows = await connection.fetch(_SQL["count_schedules"], names)
            counted += [("schedules", row["key"], row["jobs"]) for row in rows]
            rows = await connection.fetch(_SQL["count_messages"])
            counted += [("outbox", row["key"], row["jobs"]) for row in rows]
        for place, key, jobs in counted:
            counts.setdefault(key, {})[place] = jobs
        held = self._keys.names
        return PayloadKeyUses(
            [PayloadKeyUse(key, key in held, held[:1] == (key,), **found) for key, found in counts.items()]
        )

    async def reencrypt(self, asked: ReencryptRequest, *, caller: Caller) -> Reencrypted:
        """Encrypt one window with the first key, and with the first window all schedules.

        Raises:
            Unavailable: ``payload_keys_missing`` (409): this process has no keys. Retry in one that has.
        """
        if not self._keys:
            text = "this process has no payload keys; set TICKWRIGHT_PAYLOAD_KEYS where the api or this command runs"
            raise Unavailable("payload_keys_missing", text, status=409)
        table = _TABLES[asked.part]
        async with self._pool.acquire() as connection, connection.transaction():
            names = await _encrypted(connection)
            done = _Done()
            if asked.part == "jobs" and asked.after == 0:
                await self._seal_schedules(connection, names, done)
            end = await connection.fetchval(_SQL[f"{table}_window"], asked.after, WINDOW)
            if end is not None:
                purpose = Purpose.MESSAGE if asked.part in _MESSAGES else Purpose.PAYLOAD
                await self._seal_window(connection, table, names, asked.after, end, purpose, done)
            if done.changed:
                after = {"key": self._keys.names[0], "changed": done.changed, "part": asked.part}
                await write_audit(connection, caller, "payload_keys.reencrypt", "payload_keys", after=after)
            await self._probe.reached("payload_keys.written", after=asked.after, changed=done.changed)
        following = ReencryptRequest(part=asked.part, after=end) if end is not None else None
        if following is None and asked.part in _NEXT:
            following = ReencryptRequest(part=_NEXT[asked.part])
        return Reencrypted(done.changed, done.left, done.unreadable, following)

    async def _seal_schedules(self, connection: Connection, names: Sequence[str], done: "_Done") -> None:
        for row in await connection.fetch(_SQL["schedules_stale"], names, self._keys.names[0]):
            if (sealed := self._sealed(row["payload"], Purpose.PAYLOAD, row["task_type"])) is None:
                done.unreadable += 1
            else:
                await connection.execute(_SQL["schedules_seal"], row["name"], sealed)
                done.changed += 1

    async def _seal_window(  # noqa: PLR0917  a window and its result
        self,
        connection: Connection,
        table: str,
        names: Sequence[str],
        after: int,
        end: int,
        purpose: Purpose,
        done: "_Done",
    ) -> None:
        rows = await connection.fetch(_SQL[f"{table}_stale"], after, end, names, self._keys.names[0])
        found = [(row["id"], row["version"], *self._of_row(row, purpose)) for row in rows]
        sealed = [one for one in found if one[2] is not None]
        done.unreadable += len(found) - len(sealed)
        if not sealed:
            return
        await self._probe.reached("payload_keys.read", ids=[one[0] for one in sealed])
        written = await connection.fetch(_SQL[f"{table}_seal"], *map(list, zip(*sealed, strict=True)))
        done.changed += len(written)
        done.left += len(sealed) - len(written)

    def _of_row(self, row: Any, purpose: Purpose) -> tuple[str | None, str | None]:
        """Return a row's payload and progress under the first key; no payload where one of them cannot be read."""
        payload = self._sealed(row["payload"], purpose, row["subject"])
        if row["progress"] is None:
            return payload, None
        progress = self._sealed(row["progress"], Purpose.PROGRESS, str(row["id"]))
        return (None if progress is None else payload), progress

    def _sealed(self, text: str, purpose: Purpose, subject: str) -> str | None:
        try:
            return self._keys.seal(self._keys.open(text, purpose, subject), purpose, subject)
        except (Unavailable, Rejected):
            return None


class _Done:
    """Counts of one call."""

    def __init__(self) -> None:
        self.changed = self.left = self.unreadable = 0


async def _encrypted(connection: Connection) -> list[str]:
    return [row["name"] for row in await connection.fetch(_SQL["encrypted_types"])]


def payload_key_routes(keys: PayloadKeyAdmin, gate: Gate) -> APIRouter:
    """Return the routes of payload keys."""
    router = APIRouter(tags=["payload keys"])
    operator = [Depends(gate.allow(Role.OPERATOR))]
    admin = Annotated[Caller, Depends(gate.allow(Role.ADMIN))]

    @router.get("/v1/payload-keys", dependencies=operator, **answers(PayloadKeyUses))
    async def list_payload_keys() -> Response:
        """Return how many encrypted jobs need each key; the keys themselves are nowhere in the API."""
        return answer(await keys.uses())

    @router.post("/v1/payload-keys:reencrypt", **answers(Reencrypted), **accepts(ReencryptRequest))
    async def reencrypt_payloads(request: Request, caller: admin) -> Response:
        """Encrypt a thousand waiting jobs, or dead letters, with the first key; repeat it with ``next`` as the body."""
        return answer(await keys.reencrypt(decode(await request.body(), _request), caller=caller))

    return router


_request = msgspec.json.Decoder(ReencryptRequest)
