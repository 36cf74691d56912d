"""Rotation of payload keys: nothing is lost, whatever is killed, claimed or edited meanwhile, and old keys can go."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import MappingProxyType

import psycopg
import pytest

from kit.api import ADMIN
from kit.cli import environment, tickwright
from kit.engine import policy, running_engine
from kit.probes import Stops
from kit.processes import kill_group, spawn
from kit.waiting import eventually_async
from tickwright import Fail, Job, Tickwright, Unavailable
from tickwright.capabilities.jobs.admin import payload_keys as module
from tickwright.capabilities.jobs.admin.payload_keys import PayloadKeyAdmin, ReencryptRequest
from tickwright.capabilities.jobs.schedules.definition import ScheduleRequest
from tickwright.domain.envelopes import Purpose
from tickwright.engine.payload_keys import PayloadKeys
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.store.pool import Pool

OLD, NEW = ("old", bytes(range(1, 33))), ("new", bytes(range(32)))
BOTH, ONLY_OLD, ONLY_NEW = PayloadKeys([NEW, OLD]), PayloadKeys([OLD]), PayloadKeys([NEW])
PROGRAM = Path(__file__).parents[3] / "kit/rotation_process.py"
VERSION = " AND t.fence + coalesce(t.edits, 0) + 1 = u.version"


def program(url: str, keys: PayloadKeys) -> Tickwright:
    """Return an app with an encrypted type whose jobs report progress, and fail where ``fails`` says so."""
    app = Tickwright(url, payload_keys=keys)

    @app.job("charge", encrypted=True)
    async def charge(job: Job, n: int, fails: bool = False) -> int:
        await job.progress(n)
        if fails:
            raise Fail("no")
        return n

    return app


@pytest.fixture
async def app(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Tickwright]:
    """An app that has only the old key; windows of ten jobs."""
    monkeypatch.setattr(module, "WINDOW", 10)
    async with program(database_url, ONLY_OLD) as app:
        yield app


async def rotate(pool: Pool, keys: PayloadKeys = BOTH, probe: Probe = NO_PROBE) -> Counter[str]:
    """Encrypt everything again; return the sums of the answers."""
    admin, total = PayloadKeyAdmin(pool, keys, probe=probe), Counter[str]()
    asked: ReencryptRequest | None = ReencryptRequest()
    while asked is not None:
        done = await admin.reencrypt(asked, caller=ADMIN)
        total += Counter(changed=done.changed, left=done.left, unreadable=done.unreadable)
        asked = done.next
    return total


async def uses(pool: Pool, keys: PayloadKeys = BOTH) -> dict[str | None, dict[str, int]]:
    """Return how many need each key, by its name without the fingerprint."""
    found = (await PayloadKeyAdmin(pool, keys).uses()).items
    places = ("live", "dead_letters", "finished", "schedules")
    return {
        one.key and one.key.partition("/")[0]: {place: getattr(one, place) for place in places if getattr(one, place)}
        for one in found
    }


async def payloads(pool: Pool, keys: PayloadKeys) -> list[int]:
    """Return the numbers in all payloads, opened with ``keys``."""
    rows = await pool.fetch("SELECT payload::text AS payload FROM tickwright.scheduled_tasks ORDER BY id")
    return [json.loads(keys.open(row["payload"], Purpose.PAYLOAD, "charge"))["n"] for row in rows]


async def test_after_a_rotation_nothing_that_can_run_needs_the_old_key(app: Tickwright, database_url: str) -> None:
    """Waiting jobs, dead letters and schedules have the new key; finished jobs are counted until they are deleted."""
    dead = await app.schedule("charge", {"n": 1, "fails": True})
    await app.schedule("charge", {"n": 2})
    await app.drain(raises=False)
    waiting = [await app.schedule("charge", {"n": n}, delay="1h") for n in range(25)]
    nightly = ScheduleRequest(task_type="charge", payload={"n": 5}, cron="0 3 * * *")
    await app.schedules.put("nightly", nightly, caller=ADMIN)
    before = {"live": 25, "dead_letters": 1, "finished": 1, "schedules": 1}
    assert await uses(app.pool) == {"new": {}, "old": before}
    assert await rotate(app.pool) == Counter(changed=27)
    after = {"live": 25, "dead_letters": 1, "schedules": 1}
    assert await uses(app.pool) == {"new": after, "old": {"finished": 1}}
    assert await rotate(app.pool) == Counter()
    async with program(database_url, ONLY_NEW) as rotated:
        await rotated.retry(dead.id)
        for one in waiting:
            await rotated.run_now(one.id)
        ended = Counter(job.outcome for job in (await rotated.drain(raises=False)).jobs)
        assert ended == {"completed": 25, "failed": 1}
        assert [await rotated.result(one.id) for one in waiting] == [*range(25)]


async def test_jobs_from_before_the_encryption_are_counted_and_encrypted(app: Tickwright) -> None:
    """They are plain until a rotation; a dead letter that is plain cannot be requeued before."""
    await app.pool.execute("INSERT INTO tickwright.task_types (name, target) VALUES ('late', 'python:late')")
    await app.schedule("late", {"n": 1}, delay="1h")
    await app.pool.execute("UPDATE tickwright.task_types SET encrypted = true WHERE name = 'late'")
    assert (await uses(app.pool))[None] == {"live": 1}
    assert await rotate(app.pool) == Counter(changed=1)
    assert None not in await uses(app.pool)


async def test_a_rotation_without_the_old_key_leaves_what_it_cannot_read(app: Tickwright) -> None:
    """It says how many, and changes none of them; without any key it is refused."""
    await app.schedule("charge", {"n": 1}, delay="1h")
    assert await rotate(app.pool, ONLY_NEW) == Counter(unreadable=1)
    assert await payloads(app.pool, ONLY_OLD) == [1]
    with pytest.raises(Unavailable) as caught:
        await rotate(app.pool, PayloadKeys())
    assert caught.value.code == "payload_keys_missing"


async def test_an_edit_or_a_claim_between_reading_and_writing_wins(app: Tickwright) -> None:
    """ENC-6: the version has changed, so the rotation leaves the job; the next one finds it."""
    edited, held, kept = [await app.schedule("charge", {"n": n}, delay="1h") for n in range(3)]
    probe = Stops()
    probe.close("payload_keys.read")
    rotating = asyncio.create_task(rotate(app.pool, probe=probe))
    await eventually_async(lambda: probe.reached_times["payload_keys.read"], what="the window is read")
    await edited.edit(payload={"n": 10})
    await app.pool.execute(
        "UPDATE tickwright.scheduled_tasks SET owner = 1, status = 'processing' WHERE id = $1", held.id
    )
    probe.open("payload_keys.read")
    assert await rotating == Counter(changed=1, left=2)
    assert await payloads(app.pool, BOTH) == [10, 1, 2]
    assert await payloads_of(app.pool, kept.id) == [2]
    await app.pool.execute(
        "UPDATE tickwright.scheduled_tasks SET owner = NULL, status = 'pending' WHERE id = $1", held.id
    )
    assert await rotate(app.pool) == Counter(changed=2)
    assert await payloads(app.pool, ONLY_NEW) == [10, 1, 2]


async def payloads_of(pool: Pool, job_id: int) -> list[int]:
    """Return the number in one payload, opened with the new key only."""
    text = await pool.fetchval("SELECT payload::text FROM tickwright.scheduled_tasks WHERE id = $1", job_id)
    return [json.loads(ONLY_NEW.open(text, Purpose.PAYLOAD, "charge"))["n"]]


@pytest.mark.mutant
async def test_the_version_guards_an_edit(app: Tickwright, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the test above fails: the edit is lost."""
    sql = module._SQL["live_seal"]
    assert VERSION in sql
    monkeypatch.setattr(module, "_SQL", MappingProxyType({**module._SQL, "live_seal": sql.replace(VERSION, "")}))
    with pytest.raises(AssertionError):
        await test_an_edit_or_a_claim_between_reading_and_writing_wins(app)


@pytest.mark.parametrize("point", ["payload_keys.read:2", "payload_keys.written:1", "payload_keys.written:3"])
async def test_a_rotation_that_is_killed_can_be_repeated(
    app: Tickwright, database_url: str, tmp_path: Path, point: str
) -> None:
    """Kill -9 before or after the writes of a window: each job keeps its payload, under one of the keys."""
    for n in range(40):
        await app.schedule("charge", {"n": n}, delay="1h")
    given = {
        "ROTATION_DATABASE": database_url, "ROTATION_KILL_AT": point,
        "ROTATION_KEYS": "new=env:NEW_KEY,old=env:OLD_KEY",
        "NEW_KEY": NEW[1].hex(), "OLD_KEY": OLD[1].hex(),
    }  # fmt: skip
    child = spawn([sys.executable, str(PROGRAM)], tmp_path / "rotation.log", given)
    try:
        await eventually_async(lambda: child.poll() is not None, 60, what="it killed itself")
    finally:
        kill_group(child)
    assert child.returncode == -9, (tmp_path / "rotation.log").read_text()
    windows = int(point[-1]) - 1
    found = await uses(app.pool)
    assert (found["new"].get("live", 0), found["old"]["live"]) == (10 * windows, 40 - 10 * windows)
    assert await payloads(app.pool, BOTH) == [*range(40)]
    assert await rotate(app.pool) == Counter(changed=40 - 10 * windows)
    assert await payloads(app.pool, ONLY_NEW) == [*range(40)]


async def test_jobs_that_run_during_a_rotation_run_once_with_their_payloads(app: Tickwright, database_url: str) -> None:
    """A worker claims while windows are written; none waits for long, none runs with another payload."""
    ran: list[int] = []

    async def charge(job: Job, n: int) -> None:
        ran.append(n)

    made = await app.schedule_many([app.new_job("charge", {"n": n}) for n in range(300)])
    kinds = {"charge": policy("charge", encrypted=True)}
    async with running_engine(database_url, {"charge": charge}, kinds=kinds, keys=BOTH) as engine:
        total = Counter[str]()
        while len(ran) < len(made):
            total += await rotate(app.pool)
        for one in made:
            await engine.until(one.id, "completed", within_s=30)
    assert sorted(ran) == [*range(300)]
    assert not total["unreadable"]


def test_the_command_makes_keys_that_are_accepted() -> None:
    """What ``payload-keys new`` prints can be used as it is."""
    made = tickwright("payload-keys", "new", env=environment())
    assert made.code == 0
    assert PayloadKeys.parse("a=env:K", {"K": made.out}).names


def test_the_commands_count_and_encrypt(database_url: str) -> None:
    """The command line shows which key is still needed, and rotates."""
    with psycopg.connect(database_url) as own:
        own.execute(
            "INSERT INTO tickwright.task_types (name, target, encrypted) VALUES ('charge', 'python:charge', true)"
        )
        sealed = ONLY_OLD.seal('{"n": 1}', Purpose.PAYLOAD, "charge")
        own.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload) VALUES (now(), 'charge', %s)",
            [sealed],
        )
    given = environment(DATABASE_URL=database_url, PAYLOAD_KEYS="new=env:NEW_KEY,old=env:OLD_KEY")
    given |= {"NEW_KEY": NEW[1].hex(), "OLD_KEY": OLD[1].hex()}

    def live() -> dict[str, int]:
        found = tickwright("payload-keys", "list", "--json", env=given).json["items"]
        return {one["key"].partition("/")[0]: one["live"] for one in found}

    assert live() == {"new": 0, "old": 1}
    assert tickwright("payload-keys", "reencrypt", env=given).out == "1 encrypted with the first key\n"
    assert live() == {"new": 1, "old": 0}
