"""Every example runs as its page says."""

import asyncio
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest
from aiohttp import web
from standardwebhooks import Webhook

from kit.cli import environment
from kit.fix_app_roles import AppRole
from kit.ports import free_port
from kit.processes import kill_group, spawn
from kit.rabbit_tasks import Fanout
from kit.servers import RabbitServer, RedisServer
from kit.waiting import eventually_async
from tickwright import Tickwright
from tickwright.capabilities.jobs.requests import TaskTypeRequest
from tickwright.ports.caller import Caller, Role

EXAMPLES = Path(__file__).parents[2] / "examples"
ADMIN = Caller("test", Role.ADMIN)


def load(path: str) -> Any:
    """Import an example by its path."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, EXAMPLES / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_shop_reminds_of_the_order_that_was_committed(database_url: str, tmp_path: Path) -> None:
    """The one that was rolled back has neither an order nor a reminder."""
    command = [sys.executable, str(EXAMPLES / "one_shot_jobs/shop.py")]
    env = environment(DATABASE_URL=database_url, METRICS_BIND="127.0.0.1:0")
    said = await asyncio.to_thread(
        subprocess.run, command, env=env, cwd="/", capture_output=True, text=True, check=False, timeout=60
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[0] == "rolled back: bob could not pay"
    assert "reminding of order 1 (job 1, attempt 1)" in said.stdout
    db = await asyncpg.connect(database_url)
    assert await db.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 1
    assert await db.fetchval("SELECT count(*) FROM shop_orders") == 1
    await follow("one_shot_jobs", tmp_path, [], lambda: _run_roles(db, "worker"), DATABASE_URL=database_url)
    await db.close()


async def test_the_parcel_that_was_committed_has_a_tracker(database_url: str, tmp_path: Path) -> None:
    """The one that was rolled back has neither; a status that the courier reports counts at once, and ends it."""
    command = [sys.executable, str(EXAMPLES / "trackers/parcels.py")]
    env = environment(DATABASE_URL=database_url, METRICS_BIND="127.0.0.1:0")
    said = await asyncio.to_thread(
        subprocess.run, command, env=env, cwd="/", capture_output=True, text=True, check=False, timeout=60
    )
    assert said.returncode == 0, said.stderr
    first, *rest = said.stdout.splitlines()
    assert first.startswith("tracker 1: registered at ")
    assert rest[:2] == ["out_for_delivery: applied, ended: False", "Delivered: applied, ended: True"]
    assert rest[2].endswith("Delivered is a terminal status of swift")
    db = await asyncpg.connect(database_url)
    assert await db.fetchval("SELECT array_agg(number) FROM parcels") == ["P1"]
    rows = await db.fetch("SELECT external_id, status FROM tickwright.shipment_polling_tracker")
    assert [tuple(row) for row in rows] == [("P1", "Delivered")]
    roles = ("scheduler", "relay", "poll-consumer")
    await follow("trackers", tmp_path, [], lambda: _run_roles(db, *roles), DATABASE_URL=database_url)
    await db.close()


async def _run_roles(db: asyncpg.Connection, *wanted: str) -> bool:
    """Whether processes with these roles live."""
    found = await db.fetch("SELECT roles FROM tickwright.workers WHERE lost_at IS NULL AND lease_until > now()")
    return set(wanted) <= {role for row in found for role in row["roles"]}


@pytest.mark.storm
async def test_the_hub_is_done_with_fast_providers_while_the_slow_one_is_asked(
    database_url: str, rabbit_server: RabbitServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Four providers on three consumers of one slot: each asked and done once, the slow one last."""
    queues = Fanout(rabbit_server.url)
    prefix = queues.names.prefix
    servers = {
        "DATABASE_URL": database_url, "AMQP_URL": rabbit_server.url, "AMQP_PREFIX": prefix,
        "REDIS_URL": redis_server.url, "REDIS_PREFIX": prefix,
    }  # fmt: skip
    env = environment(METRICS_BIND="127.0.0.1:0", **servers)
    command = [sys.executable, str(EXAMPLES / "ocpi_hub/hub.py")]
    try:
        said = await asyncio.to_thread(
            subprocess.run, command, env=env, cwd="/", capture_output=True, text=True, check=False, timeout=100
        )
        assert said.returncode == 0, said.stderr
        done = re.findall(r"^ *([0-9.]+) s  consumer ([123]): (\S+) done, 5 locations$", said.stdout, re.MULTILINE)
        assert sorted(code for _, _, code in done) == ["DE.SLO", "NL.ONE", "NL.TRE", "NL.TWO"]
        assert done[-1][2] == "DE.SLO"
        assert max(float(at) for at, _, code in done if code != "DE.SLO") < 4.5
        assert len({consumer for _, consumer, _ in done}) > 1
        db = await asyncpg.connect(database_url)
        assert (
            await db.fetchval("SELECT count(*) FROM tickwright.fanout_cursors WHERE last_success_at IS NOT NULL") == 4
        )
        parties = await db.fetchval("SELECT string_agg(party::text, '') FROM tickwright.entities")
        assert "only-for-this-example" not in parties + said.stdout + said.stderr
        began = await db.fetchval("SELECT clock_timestamp()")

        async def are_asked_by_hand() -> bool:
            sql = "SELECT count(*) FROM tickwright.fanout_cursors WHERE last_success_at > $1"
            return bool(await db.fetchval(sql, began) == 4)

        await follow("ocpi_hub", tmp_path, said.stdout.splitlines(), are_asked_by_hand, **servers)
        await db.close()
    finally:
        await queues.remove()


async def test_the_report_of_two_databases_is_one_file(database_url: str, tmp_path: Path) -> None:
    """Only users of the country, exact amounts, no formula; an equal request is the same report."""
    command = [sys.executable, str(EXAMPLES / "withdrawals_report/report.py")]
    env = environment(DATABASE_URL=database_url, METRICS_BIND="127.0.0.1:0", HOME=str(tmp_path))
    said = await asyncio.to_thread(
        subprocess.run, command, env=env, cwd="/", capture_output=True, text=True, check=False, timeout=100
    )
    assert said.returncode == 0, said.stderr
    first, users, withdrawals, sizes, address, *file = said.stdout.splitlines()
    assert re.fullmatch(r"report (\d+), and for an equal request report \1", first)
    assert (users, withdrawals) == (
        "stage 1: users is done, 2 rows",
        "stage 2: withdrawals is done, 3 rows",
    )
    assert sizes.startswith("3 rows, ")
    assert address.startswith(f"file://{tmp_path}/objects/reports/")
    file, more = file[:5], file[5:]
    assert file == [
        "name,amount,asked_at",
        "'=cmd|' /C calc'!A0,5.00,2026-01-07T09:15:00.000000Z",
        "ann,20.50,2026-01-05T10:00:00.000000Z",
        "ann,1000.00,2026-01-06T12:30:00.000000Z",
        "",
    ]
    db = await asyncpg.connect(database_url)

    async def is_made_by_hand() -> bool:
        return bool(await db.fetchval("SELECT count(*) FROM tickwright.reports WHERE status = 'finished'") == 2)

    await follow("withdrawals_report", tmp_path, more, is_made_by_hand, DATABASE_URL=database_url)
    [made] = await asyncio.to_thread(lambda: list(tmp_path.glob("fresh/examples/withdrawals_report/*.csv")))
    assert await asyncio.to_thread(made.read_text) == "\n".join(file)
    await db.close()


async def run_with_url(path: str, database_url: str, home: Path) -> list[str]:
    """Run an example on a database and return what it says; it ends well."""
    command = [sys.executable, str(EXAMPLES / path)]
    env = environment(DATABASE_URL=database_url, METRICS_BIND="127.0.0.1:0", HOME=str(home))
    said = await asyncio.to_thread(
        subprocess.run, command, env=env, cwd="/", capture_output=True, text=True, check=False, timeout=100
    )
    assert said.returncode == 0, said.stderr
    return said.stdout.splitlines()


async def test_the_campaign_makes_one_application_for_each_selected_client(database_url: str, tmp_path: Path) -> None:
    """Each of 50,000 clients that the expression selects has one application, and no other client has one."""
    said = await run_with_url("loan_campaign/campaign.py", database_url, tmp_path)
    assert re.fullmatch(r"execution \d+: FINISHED, 50000 clients in 10 chunks", said[0])
    assert said[1:3] == ["selected 7222, applications 7222, twice 0", "to go on by hand:"]
    db = await asyncpg.connect(database_url)
    wanted = "age > 25 AND income > 3000 AND country = 'UK'"
    sql = (
        f"SELECT count(*) FROM clients LEFT JOIN applications ON client_id = id WHERE ({wanted}) = (client_id IS NULL)"
    )
    assert await db.fetchval(sql) == 0
    await follow("loan_campaign", tmp_path, said[3:], lambda: _is_done_by_hand(db), DATABASE_URL=database_url)
    await db.close()


async def _is_done_by_hand(db: asyncpg.Connection) -> bool:
    """Whether the execution that the page starts has ended, and all its jobs."""
    ended = await db.fetchval(
        "SELECT count(*) FROM tickwright.executions WHERE status = 'FINISHED' AND released = actions"
    )
    return bool(ended == 2 and not await db.fetchval("SELECT count(*) FROM ONLY tickwright.scheduled_tasks"))


async def follow(
    folder: str, home: Path, said: Sequence[str], is_done: Callable[[], Awaitable[bool]], **given: str
) -> None:
    """Do by hand what an example's page says, line by line, in a fresh folder and with what its program printed.

    Args:
        folder: Of the example.
        home: Of the embedded tools; the fresh folder is made in it.
        said: What the program of the first line has printed; it is not started again.
        is_done: Whether what runs then does what the page says.
        given: Settings that outrank the page's: which servers there are.
    """
    shutil.copytree(EXAMPLES / folder, home / "fresh/examples" / folder)
    given = {"HOME": str(home), "METRICS_BIND": "127.0.0.1:0", "API_BIND": f"127.0.0.1:{free_port()}", **given}
    outranks, env, where = environment(**given), environment(), home / "fresh"
    printed = dict(shlex.split(line)[1].split("=", 1) for line in said if line.startswith("export "))
    processes = []
    try:
        for line in re.findall(r"^    (\S.*)", (EXAMPLES / folder / "README.md").read_text(), re.MULTILINE):
            match shlex.split(line, comments=True):
                case ["cd", to]:
                    where /= to
                case ["export", *pairs]:
                    for name, _, value in (pair.partition("=") for pair in pairs):
                        env[name] = printed[name] if value == "…" else value
                case ["python", script] if script.startswith("examples/"):
                    assert (where / script).is_file()
                case ["python" | "tickwright" as program, *words]:
                    command = [sys.executable, *(["-m", "tickwright"] if program == "tickwright" else []), *words]
                    if program == "python" or words[0] in {"run", "worker"}:
                        own = {**env, **outranks}
                        processes.append(await asyncio.to_thread(spawn, command, home / "log", own, cwd=where))
                        continue
                    done = await asyncio.to_thread(
                        subprocess.run, command, env={**env, **outranks}, cwd=where, capture_output=True, text=True,
                        check=False, timeout=100,
                    )  # fmt: skip
                    assert done.returncode == 0, done.stdout + done.stderr + (home / "log").read_text()
                case other:
                    raise AssertionError(f"a line that is not followed: {other}")
        await eventually_async(is_done, 120, what=f"the page's commands do what they say; {(home / 'log').read_text()}")
        assert [process.poll() for process in processes] == [None] * len(processes), (home / "log").read_text()
    finally:
        for process in processes:
            kill_group(process)


def test_every_page_with_a_program_is_followed() -> None:
    """A new example has a test that follows its page."""
    pages = {page.parent.name for page in EXAMPLES.glob("*/README.md") if "    python examples/" in page.read_text()}
    assert pages == set(re.findall(r"await follow\(\s*\"(\w+)\"", Path(__file__).read_text()))


async def test_the_ledger_says_what_the_bank_says_and_a_second_run_finds_nothing(
    database_url: str, tmp_path: Path
) -> None:
    """Missing entries and wrong ones are repaired."""
    first, second, _, *exports = await run_with_url("reconciliation/ledger.py", database_url, tmp_path)
    assert first.endswith(": FINISHED, 20000 entries compared, 46 repaired")
    assert second.endswith(": FINISHED, 20000 entries compared, 0 repaired")
    db = await asyncpg.connect(database_url)
    sql = "SELECT count(*) FROM bank_entries FULL JOIN ledger_entries USING (id, cents)"
    assert await db.fetchval(sql) == 20_000
    roles = ("scheduler", "campaign-consumer")
    await follow("reconciliation", tmp_path, exports, lambda: _run_roles(db, *roles), DATABASE_URL=database_url)
    await db.close()


async def test_plain_sql_does_what_its_page_says(app_role: AppRole) -> None:
    """The page's block runs as it is by the page's role: three jobs, one moved and one cancelled, and a message."""
    [block] = re.findall(r"```sql\n(.*?)```", (EXAMPLES / "sql_only/README.md").read_text(), re.DOTALL)
    db = await asyncpg.connect(app_role.url)
    await db.execute(block)
    rows = await db.fetch("SELECT payload, status, priority FROM tickwright.scheduled_tasks ORDER BY id")
    assert [(row["payload"], row["status"], row["priority"]) for row in rows] == [
        ('{"report": 7}', "cancelled", 0),
        ('{"report": 8}', "pending", 0),
        ('{"report": 9}', "pending", 10),
    ]
    assert await db.fetchval("SELECT count(id) FROM tickwright.outbox") == 1
    await db.close()


async def serve(receiver: Any, module: Any) -> tuple[web.AppRunner, int]:
    """Serve the example's receiver at a free port."""
    runner = web.AppRunner(module.make_app(receiver))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, runner.addresses[0][1]


async def test_the_receiver_takes_a_real_callback(database_url: str) -> None:
    """A job with an HTTP target arrives signed, and is done once."""
    module = load("callback_receiver.py")
    receiver = module.Receiver("whsec_" + "a" * 32)
    runner, port = await serve(receiver, module)
    app = Tickwright(database_url, allow_targets="127.0.0.1", metrics_bind="127.0.0.1:0")
    async with app:
        target = TaskTypeRequest(target=f"http://127.0.0.1:{port}/callback")
        stored = await app.service.types.put("hook", target, caller=ADMIN)
        receiver.webhook = Webhook(stored.secret or "")
        worker = asyncio.create_task(app.run_worker())
        made = await app.schedule("hook", {"a": 1})

        async def completed() -> bool:
            return (await app.get(made.id)).status == "completed"

        await eventually_async(completed, what="the callback is done")
        worker.cancel()
        await asyncio.wait([worker])
    await runner.cleanup()
    assert receiver.done == {f"job_{made.id}": b'{"a": 1}'}


@pytest.mark.parametrize(
    ("fences", "statuses", "signed"),
    [([1, 1], [200, 200], True), ([2, 1], [200, 409], True), ([1, 2], [200, 200], True), ([1], [401], False)],
)
async def test_the_receiver_refuses_wrong_signatures_and_old_attempts(
    fences: list[int], statuses: list[int], signed: bool
) -> None:
    """A repeated message is done once; a lower fence and a wrong signature are refused."""
    module = load("callback_receiver.py")
    receiver = module.Receiver("whsec_" + "a" * 32)
    runner, port = await serve(receiver, module)
    now = datetime.now(UTC)
    signature = receiver.webhook.sign("job_7", now, '{"a":1}') if signed else "v1,bm9ib2R5"
    answers = []
    async with aiohttp.ClientSession() as session:
        for fence in fences:
            headers = {
                "webhook-id": "job_7", "webhook-timestamp": str(int(now.timestamp())), "webhook-signature": signature,
                "tickwright-fence": str(fence), "tickwright-task-type": "hook", "tickwright-attempt": "1",
            }  # fmt: skip
            url = f"http://127.0.0.1:{port}/callback"
            async with session.post(url, data=b'{"a":1}', headers=headers) as answer:
                answers.append(answer.status)
    await runner.cleanup()
    assert answers == statuses
    assert list(receiver.done.values()) == ([b'{"a":1}'] if signed else [])


WITH_TESTS = sorted({file.parent.name for file in EXAMPLES.glob("*/test_*.py")})
INI = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"


@pytest.mark.parametrize("example", WITH_TESTS)
def test_the_tests_of_an_example_pass(example: str, tmp_path: Path) -> None:
    """With the pytest plugin, as its reader runs them."""
    (tmp_path / "pytest.ini").write_text(INI)
    plugins = ["-p", "tickwright.testing.plugin", "-p", "no:schemathesis", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-c", str(tmp_path / "pytest.ini"), "--rootdir", str(tmp_path), *plugins]
    env = {**environment(), "TICKWRIGHT_TEST_HOME": str(tmp_path / "server"), "PYTHONDONTWRITEBYTECODE": "1"}
    said = subprocess.run(
        [*command, str(EXAMPLES / example)], cwd=EXAMPLES / example, env=env, check=False, capture_output=True,
        text=True, timeout=90,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr


def test_the_examples_with_handlers_have_tests() -> None:
    """A reader sees how a program of each kind is tested."""
    assert {"ocpi_hub", "one_shot_jobs", "trackers"} <= set(WITH_TESTS)
