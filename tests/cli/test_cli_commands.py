"""Commands do what the API does, straight on the database or through an API, and end with the right code."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from pydantic import SecretStr

from kit.api import running_api
from kit.cli import Said, environment, tickwright
from kit.ports import free_port
from kit.tcp_proxy import TcpProxy
from tickwright import Tickwright
from tickwright.capabilities.operations.listings import Operations
from tickwright.domain.errors import Rejected
from tickwright.plugin.settings import Bind, Settings
from tickwright.ports.caller import Caller, Role
from tickwright.process.node import open_node

SECRET = "pa55word"


@pytest.fixture
def env(database_url: str) -> dict[str, str]:
    """An environment that goes straight to a fresh database."""
    return environment(DATABASE_URL=database_url)


@pytest.fixture
def mail(env: dict[str, str]) -> dict[str, str]:
    """The same, with the task type ``mail``."""
    assert tickwright("task-types", "put", "mail", "--target", "pg:mail", "--timeout", "5s", env=env).code == 0
    return env


def ok(*words: str, env: dict[str, str], **more: Any) -> Said:
    """Run a command that must succeed."""
    said = tickwright(*words, env=env, **more)
    assert said.code == 0, said
    return said


def test_a_jobs_life_in_commands(mail: dict[str, str]) -> None:
    """Schedule, show, move, cancel; every action is in the audit trail under the name of the user."""
    made = ok("jobs", "schedule", "mail", '{"to": "ann"}', "--in", "1h", "--key", "k", "--json", env=mail).json
    assert made["created"] is True
    again = ok("jobs", "schedule", "mail", '{"to": "ann"}', "--in", "1h", "--key", "k", "--json", env=mail).json
    assert (again["id"], again["outcome"]) == (made["id"], "existing")
    number = str(made["id"])
    assert ok("jobs", "show", number, "--json", env=mail).json["payload"] == {"to": "ann"}
    assert ok("jobs", "show", number, "--wait", "1ms", "--json", env=mail).json["status"] == "pending"
    assert tickwright("jobs", "show", number, "--wait", "2m", "--json", env=mail).error["code"] == "invalid_wait"
    assert [job["id"] for job in ok("jobs", "list", "--status", "pending", "--json", env=mail).json["items"]] == [
        made["id"]
    ]
    assert ok("jobs", "explain", number, env=mail).out.startswith("pending: ")
    assert (
        ok("jobs", "reschedule", number, "--at", "2031-01-01T00:00:00Z", "--json", env=mail).json["outcome"]
        == "rescheduled"
    )
    assert ok("jobs", "cancel", number, env=mail).out == f"job {number} is cancelled: cancelled\n"
    late = tickwright("jobs", "run-now", number, "--json", env=mail)
    assert (late.code, late.out, late.error["code"]) == (1, "", "job_finished")
    trail = ok("audit", "--json", env=mail).json["items"]
    assert [entry["action"] for entry in trail][:3] == ["jobs.cancel", "jobs.reschedule", "task_types.put"]
    assert all(entry["actor"].startswith("cli:") for entry in trail)


def test_a_task_type_keeps_what_a_later_put_does_not_name(env: dict[str, str]) -> None:
    """Options change one thing each; the first put of a signed target shows its secret once."""
    first = ok(
        "task-types", "put", "hook", "--target", "https://example.org/x", "--rate", "5/s", "--json", env=env
    ).json
    assert first["secret"].startswith("whsec_")
    second = ok("task-types", "put", "hook", "--timeout", "9s", "--retry-cap", "2m", "--json", env=env).json
    kind = second["task_type"]
    assert second["secret"] is None
    assert (kind["rate_per_s"], kind["timeout"], kind["retry_cap"], kind["retry_base"]) == (5.0, "9s", "2m", "1s")
    assert ok("task-types", "pause", "hook", "--json", env=env).json["paused_at"] is not None
    assert ok("task-types", "enable", "hook", "--json", env=env).json["paused_at"] is None
    assert ok("task-types", "rotate-secret", "hook", env=env).out.startswith("whsec_")
    assert tickwright("task-types", "delete", "hook", env=env).code == 2
    assert ok("task-types", "delete", "hook", "--yes", "--json", env=env).json == {"deleted": "hook"}


def test_a_queue_is_paused_and_enabled(mail: dict[str, str]) -> None:
    """The queue of a type is an option of its put; a worker's limits are checked before anything starts."""
    kind = ok("task-types", "put", "mail", "--queue", "bulk", "--needs", "gpu", "--json", env=mail).json["task_type"]
    assert (kind["queue"], kind["needs"]) == ("bulk", ["gpu"])
    assert ok("queues", "pause", "bulk", env=mail).out == "bulk waits\n"
    [queue] = [one for one in ok("queues", "list", "--json", env=mail).json["items"] if one["name"] == "bulk"]
    assert (queue["types"], queue["paused_at"] is not None) == (["mail"], True)
    assert ok("queues", "enable", "bulk", "--json", env=mail).json["paused_at"] is None
    assert tickwright("queues", "pause", "nothing", "--json", env=mail).error["code"] == "queue_not_found"
    assert ok("task-types", "put", "mail", "--needs", "", "--json", env=mail).json["task_type"]["needs"] == []
    wrong = tickwright("run", "worker", "--queues", "a:0,b", "--types", "*", "--needs", "g pu", env=mail)
    assert wrong.code == 2
    for said in (
        "TICKWRIGHT_QUEUES: a: 1 to 100000 slots; 'b': write NAME:SLOTS",
        "TICKWRIGHT_TYPES",
        "TICKWRIGHT_NEEDS",
    ):
        assert said in wrong.err
    assert tickwright("run", "scheduler", "--queues", "a:1", env=mail).code == 2


def test_requeueing_what_is_no_dead_letter_fails(mail: dict[str, str]) -> None:
    """An id that was named and is none is a mistake; a subject without any is an empty answer."""
    said = tickwright("dead-letters", "requeue", "999999", "--json", env=mail)
    assert (said.code, said.json["requeued"]) == (1, 0)
    assert (said.error["code"], said.error["ids"]) == ("no_dead_letter", [999999])
    assert "999999" in tickwright("dead-letters", "requeue", "999999", env=mail).err
    assert ok("dead-letters", "requeue", "--subject", "mail", env=mail).out == "0 requeued\n"


def test_a_requeue_can_be_counted_first_and_goes_on_after_the_last_one(mail: dict[str, str], database_url: str) -> None:
    """What dies again between two calls is not put back a second time."""
    die = "UPDATE tickwright.scheduled_tasks SET status = 'failed' WHERE status = 'pending'"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
            "SELECT now() + interval '1 day', 'mail' FROM generate_series(1, 1001)"
        )
        connection.execute(die)
        requeue = ("dead-letters", "requeue", "--subject", "mail")
        assert ok(*requeue, "--dry-run", env=mail).out == "1001 dead letters, none put back\n"
        said = ok(*requeue, env=mail).out
        assert said.startswith("1000 requeued (there are more: --cursor ")
        connection.execute(die)
        cursor = said.removesuffix(")\n").rpartition(" ")[2]
        assert ok(*requeue, "--cursor", cursor, env=mail).out == "1 requeued\n"
        assert ok(*requeue, "--dry-run", "--json", env=mail).json["requeued"] == 1000
    for words in (["--dry-run"], ["--cursor", cursor]):
        said_no = tickwright("dead-letters", "requeue", "--kind", "fanout", "--all", *words, env=mail)
        assert (said_no.code, "list says how many" in said_no.err) == (2, True)
    said_no = tickwright("dead-letters", "requeue", "--all", env=mail)
    assert (said_no.code, "--all is only for fanout, reports; give the ids" in said_no.err) == (2, True)


def test_a_dead_letter_whose_key_was_used_again_is_named(mail: dict[str, str], database_url: str) -> None:
    """It stays; the others go back. One that was named by its id is a mistake."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, idempotency_key) "
            "SELECT now() + interval '1 day', 'mail', k FROM unnest(ARRAY['a', NULL, NULL]) AS k"
        )
        connection.execute("UPDATE tickwright.scheduled_tasks SET status = 'failed' WHERE status = 'pending'")
        connection.execute("DELETE FROM tickwright.job_keys")
        connection.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, idempotency_key) "
            "VALUES (now() + interval '1 day', 'mail', 'a')"
        )
        ids = connection.execute("SELECT id FROM tickwright.scheduled_tasks_dead ORDER BY id").fetchall()
    [first, second, _] = [row[0] for row in ids]
    said = tickwright("dead-letters", "requeue", str(first), str(second), "--json", env=mail)
    assert (said.code, said.json["ids"], said.json["key_reused"]) == (1, [second], [first])
    assert (said.error["code"], said.error["ids"]) == ("key_reused", [first])
    why = "other jobs have their idempotency keys by now"
    assert ok("jobs", "retry", "--type", "mail", env=mail).out == f"1 jobs; 1 not retried: {why}\n"
    again = ok("dead-letters", "requeue", "--subject", "mail", env=mail).out
    assert again == f"0 requeued; 1 not requeued: {why}\n"
    assert tickwright("jobs", "retry", str(first), "--json", env=mail).error["code"] == "key_reused"


def test_keys_are_shown_once(env: dict[str, str]) -> None:
    """Created, listed without the secret part, revoked."""
    key = ok("keys", "create", "bob", "--role", "viewer", env=env).out.strip()
    listed = ok("keys", "list", "--json", env=env)
    assert key.startswith("tw_")
    assert key not in listed.out
    number = str(listed.json["items"][0]["id"])
    assert ok("keys", "revoke", number, "--json", env=env).json["revoked_at"] is not None


def test_narrow_keys_are_made_by_their_scopes(env: dict[str, str]) -> None:
    """Scopes are listed in place of a role; one that does not exist is named with those that do."""
    ok("keys", "create", "courier", "--scope", "trackers:events", "--scope", "trackers:register", env=env)
    assert "trackers:events" in ok("keys", "list", env=env).out
    refused = tickwright("keys", "create", "courier", "--scope", "everything", env=env)
    assert (refused.code, "invalid_scopes" in refused.err, "jobs:schedule" in refused.err) == (1, True, True)


async def test_browsers_are_listed_and_signed_out(env: dict[str, str]) -> None:
    """By an admin, who sees them all."""
    async with running_api(env["TICKWRIGHT_DATABASE_URL"]) as api:
        assert (await api.stranger.post("/v1/session", {"key": api.viewer.key})).status == 200
        listed = await asyncio.to_thread(ok, "sessions", "list", "--json", env=env)
        (one,) = listed.json["items"]
        assert one["name"] == "viewer"
        await asyncio.to_thread(ok, "sessions", "revoke", str(one["id"]), env=env)
        assert (await api.admin.get("/v1/sessions")).json["items"] == []


@pytest.mark.parametrize(
    "words",
    [
        ["jobs", "list"], ["dead-letters", "list"], ["outbox"], ["workers", "list"], ["leases"], ["alerts"], ["audit"],
        ["keys", "list"], ["sessions", "list"], ["task-types", "list"], ["top", "--once"],
    ],
)  # fmt: skip
def test_every_listing_has_json_and_a_table(env: dict[str, str], words: list[str]) -> None:
    """JSON on standard output and nothing else there; a table without an escape sequence in a pipe."""
    assert isinstance(ok(*words, "--json", env=env).json, dict)
    assert "\x1b" not in ok(*words, env=env).out


def test_bulk_actions_in_commands(mail: dict[str, str]) -> None:
    """A filter, the number of jobs first, then the action on each; the command handles the cursor."""
    for name in ("ann", "bob", "100%"):
        ok("jobs", "schedule", "mail", f'{{"to": "{name}"}}', "--in", "1h", env=mail)
    assert ok("jobs", "run-now", "--type", "mail", "--dry-run", "--json", env=mail).json == {"jobs": 3, "more": False}
    assert ok("jobs", "list", "--text", "%", "--json", env=mail).json["items"][0]["status"] == "pending"
    moved = ok("jobs", "reschedule", "--text", "100%", "--shift", "-2h", "--json", env=mail).json
    assert moved == {"jobs": 1}
    assert ok("jobs", "run-now", "--type", "mail", env=mail).out == "2 jobs\n"
    assert ok("jobs", "cancel", "--text", "BOB", "--yes", env=mail).out == "1 jobs\n"
    refused = tickwright("jobs", "reschedule", "--type", "mail", "--in", "1h", "--shift", "1h", env=mail)
    assert (refused.code, refused.out) == (2, "")


def test_tags_metadata_and_edits_in_commands(mail: dict[str, str]) -> None:
    """Schedule with them, find by them, edit under the version that was shown."""
    given = ("--tag", "eu", "--tag", "night", "--metadata", "tenant=acme", "--metadata", "n:=7")
    made = str(ok("jobs", "schedule", "mail", "--in", "1h", *given, "--json", env=mail).json["id"])
    ok("jobs", "schedule", "mail", "--in", "1h", env=mail)
    for which in (("--tag", "eu", "--tag", "night"), ("--metadata", "n=7", "--metadata", "tenant=acme")):
        assert [str(job["id"]) for job in ok("jobs", "list", *which, "--json", env=mail).json["items"]] == [made]
        assert ok("jobs", "run-now", *which, "--dry-run", "--json", env=mail).json == {"jobs": 1, "more": False}
    assert ok("jobs", "edit", made, '{"to": "bob"}', "--if-version", "1", env=mail).out == (
        f"job {made} is edited: version 2\n"
    )
    ok("jobs", "edit", made, "--priority", "3", "--no-tags", "--no-metadata", env=mail)
    shown = ok("jobs", "show", made, "--json", env=mail).json
    assert {name: shown[name] for name in ("payload", "priority", "tags", "metadata", "version")} == {
        "payload": {"to": "bob"}, "priority": 3, "tags": [], "metadata": None, "version": 3,
    }  # fmt: skip
    late = tickwright("jobs", "edit", made, "--tag", "x", "--if-version", "2", "--json", env=mail)
    assert (late.code, late.error["code"]) == (1, "version_conflict")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["jbos"], "'jobs'"),
        (["jobs", "edit", "1", "--tag", "a", "--no-tags"], "--no-tags"),
        (["jobs", "schedule", "mail", "--metadata", "a"], "NAME=TEXT"),
        (["jobs", "lst"], "'list'"),
        (["jobs", "list", "--statsu", "x"], "--status"),
        (["jobs", "list", "--limit", "1000"], "200"),
        (["jobs", "schedule", "mail", "{"], "JSON"),
        (["jobs", "cancel"], "either an ID, or options"),
        (["jobs", "cancel", "--type", "mail"], "--yes"),
        (["jobs", "run-now", "5", "--type", "mail"], "either an ID, or options"),
        (["jobs", "reschedule", "--type", "mail"], "--shift"),
        (
            ["run", "nope"],
            "worker, scheduler, relay, poll-consumer, fanout-consumer, report-listener, campaign-consumer, api",
        ),
        (["task-types", "put", "x", "--target", "pg:x", "--timeout", "5"], '"30s"'),
        (["bench", "nothing"], "nothing"),
    ],
)
def test_wrong_use_ends_with_two_and_a_hint(env: dict[str, str], words: list[str], hint: str) -> None:
    """Nothing on standard output, the remedy on the other one, and no traceback."""
    said = tickwright(*words, env=env)
    assert (said.code, said.out) == (2, "")
    assert hint in said.err
    assert "Traceback" not in said.err


def test_wrong_use_is_json_where_json_was_asked_for(env: dict[str, str]) -> None:
    """A program can read why it was refused."""
    said = tickwright("jobs", "lst", "--json", env=env)
    assert (said.code, said.error["code"]) == (2, "wrong_use")
    assert "'list'" in said.error["message"]


def test_an_address_of_the_api_has_no_password_in_it() -> None:
    """It is refused with what to write instead, and without the password."""
    said = tickwright("jobs", "list", "--json", env=environment(API_URL="http://admin:hidden-word@127.0.0.1:1"))
    assert (said.code, said.error["code"]) == (2, "invalid_settings")
    assert "TICKWRIGHT_API_KEY" in said.error["message"]
    assert "hidden-word" not in said.out + said.err


def test_all_mistakes_of_the_environment_are_named_at_once() -> None:
    """A user fixes them in one go, and never reads a password."""
    said = tickwright(
        "jobs", "list",
        env=environment(DATABASE_URL=f"mysql://a:{SECRET}@b/c", LEASE="5", API_BIND="foo", ALLOW_TARGETS="10.0.0.0/99"),
    )  # fmt: skip
    assert said.code == 2
    for name in ("DATABASE_URL", "LEASE", "API_BIND", "ALLOW_TARGETS"):
        assert f"TICKWRIGHT_{name}: " in said.err
    assert SECRET not in said.err
    missing = tickwright(
        "jobs", "list", env=environment(API_URL="http://127.0.0.1:1", DIRECT_DATABASE_URL="postgresql:///x")
    )
    assert missing.code == 2
    assert "TICKWRIGHT_API_KEY: missing" in missing.err
    assert "TICKWRIGHT_DATABASE_URL: missing" in missing.err


def test_a_database_that_does_not_answer_is_one_line_without_a_password() -> None:
    """No traceback; as JSON where JSON was asked for."""
    env = environment(DATABASE_URL=f"postgresql://u:{SECRET}@127.0.0.1:1/x")
    said = tickwright("jobs", "list", env=env)
    assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
    assert SECRET not in said.err
    assert tickwright("jobs", "list", "--json", env=env).error["code"] == "database_unavailable"


@pytest.mark.parametrize("role", ["api", "worker", "up"])
@pytest.mark.parametrize("bind", ["10.255.255.1:8420", "no such host:8420", f"{'x' * 70}:8420"])
def test_an_address_that_cannot_be_listened_at_is_one_line(
    env: dict[str, str], tmp_path: Path, role: str, bind: str
) -> None:
    """Two and a code of its own, since waiting would not help; ``up`` does not look for another port either."""
    env |= {"TICKWRIGHT_API_BIND": "127.0.0.1:0", "TICKWRIGHT_METRICS_BIND": bind}
    env |= {"TICKWRIGHT_OBJECT_STORE": tmp_path.as_uri()}  # the default folder may be another installation's
    said = tickwright(role, *(["--no-example"] if role == "up" else []), env=env)
    assert said.code == 2
    assert "cannot listen at" in said.err
    assert said.err.endswith("(address_unusable)\n")
    assert said.err.count("\n") == 1


def test_a_port_that_is_in_use_is_one_line(env: dict[str, str]) -> None:
    """It names the setting to change; also where it is our own process that wants one port twice."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = tickwright("api", env={**env, "TICKWRIGHT_API_BIND": f"127.0.0.1:{port}"})
        assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
        assert said.err.endswith("(address_in_use)\n")
        assert "set TICKWRIGHT_API_BIND to another port" in said.err
    here = f"127.0.0.1:{free_port()}"
    said = tickwright("api", env={**env, "TICKWRIGHT_API_BIND": here, "TICKWRIGHT_METRICS_BIND": here})
    assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
    assert said.err.endswith("(address_in_use)\n")
    assert "set TICKWRIGHT_METRICS_BIND to another port" in said.err


def test_a_command_imports_nothing_that_it_does_not_use(mail: dict[str, str]) -> None:
    """Drivers and frameworks cost most of a command's time: help needs none of them."""
    heavy = (
        "aiohttp", "alembic", "asyncpg", "fastapi", "prometheus_client", "psycopg", "pydantic_settings",
        "rich.progress", "sqlalchemy", "structlog",
    )  # fmt: skip
    program = (
        "import sys; from tickwright.cli.program import run; run(sys.argv[1:]); "
        f"print(*(name for name in {heavy} if name in sys.modules), file=sys.stderr)"
    )
    used = "asyncpg fastapi structlog"
    for words, wanted in (["--help"], ""), (["jobs", "list"], used), (["jobs", "schedule", "mail"], used):
        command = [sys.executable, "-c", program, *words]
        said = subprocess.run(command, env=mail, cwd="/", capture_output=True, text=True, check=True)
        assert said.stderr.splitlines()[-1:] == [wanted], words


def test_a_command_loads_no_other_command(mail: dict[str, str]) -> None:
    """Building the options of all commands takes longer than a command that is called."""
    program = (
        "import sys; from tickwright.cli.program import run; run(sys.argv[1:]); "
        "print(*sorted(name for name in sys.modules if name.startswith('tickwright.cli.commands.')), file=sys.stderr)"
    )
    own = "tickwright.cli.commands.task_types"
    for words, wanted in (["worker", "--help"], ""), (["task-types", "--help"], own):
        command = [sys.executable, "-c", program, *words]
        said = subprocess.run(command, env=mail, cwd="/", capture_output=True, text=True, check=True)
        assert said.stderr.splitlines()[-1:] == [wanted], words


def test_a_database_without_a_schema_says_what_to_run(empty_database_url: str) -> None:
    """``migrate`` is the remedy, and it can be run twice."""
    env = environment(DATABASE_URL=empty_database_url)
    said = tickwright("jobs", "list", env=env)
    assert said.code == 1
    assert "tickwright migrate" in said.err
    first = ok("migrate", "--json", env=env).json
    assert ok("migrate", "--json", env=env).json == first
    assert ok("jobs", "list", env=env).code == 0


def test_migrations_can_be_read_as_sql() -> None:
    """For people who run them by hand; no database is needed."""
    assert "CREATE TABLE tickwright.scheduled_tasks" in ok("migrate", "--sql", env=environment()).out


def test_an_import_reports_every_bad_line_and_keeps_the_good_ones(mail: dict[str, str], tmp_path: Path) -> None:
    """Exit code 1 says that something was rejected; the report has line, code and reason."""
    lines = [
        '{"task_type":"mail","delay":"1h"}',
        "nonsense",
        '{"task_type":"unknown"}',
        "",
        '{"task_type":"mail","status":"x"}',
    ]
    file, report = tmp_path / "jobs.ndjson", tmp_path / "rejects.ndjson"
    file.write_text("\n".join(lines))
    said = tickwright("jobs", "import", str(file), "--rejects", str(report), "--json", env=mail)
    assert said.code == 1
    assert (said.json["created"], said.json["rejected"]) == (1, 3)
    rejects = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(reject["line"], reject["code"]) for reject in rejects] == [
        (2, "invalid_json"), (3, "unknown_task_type"), (5, "unknown_field"),
    ]  # fmt: skip
    again = ok("jobs", "import", "-", "--key", "twice", "--json", env=mail, stdin=lines[0])
    assert ok("jobs", "import", "-", "--key", "twice", "--json", env=mail, stdin=lines[0]).json["existing"] == 1
    assert again.json["created"] == 1
    assert tickwright("jobs", "import", "/no/such/file", env=mail).code == 2


def test_a_closed_pipe_is_no_error(mail: dict[str, str]) -> None:
    """``tickwright … | head -1`` is quiet."""
    for number in range(3):
        ok("jobs", "schedule", "mail", f'{{"n": {number}}}', "--in", "1h", env=mail)
    command = f"{sys.executable} -m tickwright jobs list --json | true"
    said = subprocess.run(["/bin/sh", "-c", command], env=mail, cwd="/", capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")


def test_the_doctor_names_what_is_wrong_with_a_remedy(env: dict[str, str]) -> None:
    """A misspelt variable is a warning; a missing schema or settings that are wrong are failures."""
    healthy = ok("doctor", "--json", env={**env, "TICKWRIGHT_DATBASE_URL": "x"}).json
    verdicts = {finding["check"]: finding["verdict"] for finding in healthy["findings"]}
    assert verdicts["settings"] == "warn"
    assert verdicts["schema"] == verdicts["fsync"] == verdicts["clock"] == verdicts["notifications"] == "ok"
    assert all(finding["remedy"] for finding in healthy["findings"] if finding["verdict"] != "ok")
    sick = tickwright("doctor", "--json", env=environment(DATABASE_URL="postgresql://127.0.0.1:1/x"))
    assert (sick.code, sick.json["healthy"]) == (1, False)


def test_the_doctor_examines_servers_before_the_schema_is_there(empty_database_url: str) -> None:
    """The first run names all that has to be done: the migration, and a server that does not answer."""
    servers = {"AMQP_URL": f"amqp://127.0.0.1:{free_port()}", "REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"}
    said = tickwright("doctor", "--json", env=environment(DATABASE_URL=empty_database_url, **servers))
    bad = {finding["check"]: finding["remedy"] for finding in said.json["findings"] if finding["verdict"] == "fail"}
    assert (said.code, bad.pop("schema")) == (1, "run: tickwright migrate")
    assert list(bad) == ["rabbitmq"]


@pytest.mark.matrix
@pytest.mark.parametrize(("each_way_s", "verdict"), [(0.0, "ok"), (0.06, "warn"), (0.26, "fail")])
async def test_the_doctor_reports_a_distant_database(database_url: str, each_way_s: float, verdict: str) -> None:
    """Where leases cannot be renewed in time nothing runs, so the doctor names the reason."""
    async with TcpProxy("127.0.0.1", int(database_url.rpartition(":")[2].partition("/")[0])) as proxy:
        proxy.delay(each_way_s)
        env = environment(DATABASE_URL=proxy.rewrite(database_url))
        said = await asyncio.to_thread(tickwright, "doctor", "--json", env=env)
    latency = next(finding for finding in said.json["findings"] if finding["check"] == "latency")
    assert (latency["verdict"], bool(latency["remedy"])) == (verdict, verdict != "ok")


def test_the_doctor_warns_where_notifications_are_off(env: dict[str, str]) -> None:
    """Jobs are then found by polling; the remedy is the variable."""
    said = ok("doctor", "--json", env={**env, "TICKWRIGHT_NOTIFICATIONS": "off"}).json
    notifications = next(finding for finding in said["findings"] if finding["check"] == "notifications")
    assert (notifications["verdict"], notifications["remedy"]) == ("warn", "set TICKWRIGHT_NOTIFICATIONS=true")


def test_a_direct_url_that_is_none_is_the_one_that_is_named(env: dict[str, str]) -> None:
    """The other one is right."""
    said = tickwright("doctor", env={**env, "TICKWRIGHT_DIRECT_DATABASE_URL": "db"}).out
    assert "TICKWRIGHT_DIRECT_DATABASE_URL: not a postgresql:// URL" in said


def test_the_doctor_sees_a_pooler(pgbouncer: Any, database_url: str) -> None:
    """Behind PgBouncer notifications are gone, and the remedy is a variable."""
    name = database_url.rpartition("/")[2].partition("?")[0]
    said = tickwright("doctor", "--json", env=environment(DATABASE_URL=pgbouncer.database_url(name)))
    notifications = next(finding for finding in said.json["findings"] if finding["check"] == "notifications")
    assert (notifications["verdict"], "TICKWRIGHT_DIRECT_DATABASE_URL" in notifications["remedy"]) == ("warn", True)


# ---------------------------------------------------------------------- through an API


@pytest_asyncio.fixture
async def api(database_url: str) -> AsyncIterator[dict[str, str]]:
    """An environment that goes through a running API."""
    free = Bind("127.0.0.1", 0)
    settings = Settings(database_url=SecretStr(database_url), api_bind=free, metrics_bind=free)
    async with open_node(settings, ["api"]) as node:
        running = asyncio.create_task(node.run(signals=False))
        made = await node.installation.of(Operations).keys.create("cli", Role.ADMIN, caller=Caller("test", Role.ADMIN))
        await node.supervisor.started()
        assert node.api is not None
        yield environment(API_URL=node.api.url, API_KEY=made.key)
        node.supervisor.request_stop()
        await running


async def test_the_same_commands_go_through_the_api_where_one_is_named(api: dict[str, str]) -> None:
    """Same answers, same errors; the caller is the key."""
    await asyncio.to_thread(ok, "task-types", "put", "mail", "--target", "pg:mail", env=api)
    made = await asyncio.to_thread(ok, "jobs", "schedule", "mail", "--in", "1h", "--json", env=api)
    lines = '{"task_type":"mail","delay":"1h"}\nnope'
    imported = await asyncio.to_thread(tickwright, "jobs", "import", "-", "--json", env=api, stdin=lines)
    assert (imported.code, imported.json["created"], imported.json["rejected"]) == (1, 1, 1)
    gone = await asyncio.to_thread(tickwright, "jobs", "show", str(made.json["id"] + 999), "--json", env=api)
    assert (gone.code, gone.error["code"]) == (1, "job_not_found")
    for name in (f"../jobs/{made.json['id']}/cancel#", "..", "../task-types/mail"):  # a name is never another path
        odd = await asyncio.to_thread(tickwright, "task-types", "pause", name, "--json", env=api)
        assert (odd.code, odd.error["code"]) in {(1, "task_type_not_found"), (1, "not_found"), (2, "wrong_argument")}
    assert (await asyncio.to_thread(ok, "jobs", "show", str(made.json["id"]), "--json", env=api)).json[
        "status"
    ] == "pending"
    trail = await asyncio.to_thread(ok, "audit", "--json", env=api)
    assert {entry["actor"] for entry in trail.json["items"]} == {"cli", "test"}
    wrong = {**api, "TICKWRIGHT_API_KEY": "tw_" + "x" * 43}
    refused = await asyncio.to_thread(tickwright, "jobs", "list", "--json", env=wrong)
    assert (refused.code, refused.error["code"]) == (1, "unauthenticated")


# ---------------------------------------------------------------------- the TOML file


async def test_the_toml_file_sets_task_types_at_the_start(database_url: str, tmp_path: Path) -> None:
    """Applied once; an unchanged file changes nothing at the next start."""
    file = tmp_path / "tickwright.toml"
    file.write_text(
        '[task_types.hook]\ntarget = "https://example.org/x"\ntimeout = "7s"\nrate = "30/min"\n'
        'retry = { base = "2s", factor = 1.7, cap = "1m" }\nfinal_statuses = [403]\nconcurrency = 4\n'
    )
    versions = []
    for _ in range(2):
        async with Tickwright(database_url, config=file) as app:
            kind = await app.service.types.get("hook")
            versions.append(kind.version)
            assert (kind.timeout, kind.rate_per_s, kind.final_statuses, kind.concurrency) == ("7s", 0.5, [403], 4)
    assert versions == [1, 1]


async def test_every_mistake_of_the_toml_file_is_named_with_its_key(database_url: str, tmp_path: Path) -> None:
    """File, key and remedy; nothing is applied."""
    file = tmp_path / "tickwright.toml"
    file.write_text(
        '[partner.x]\n[task_types.mail]\ntarget = "https://x y"\ntargt = "pg:x"\ntimeout = 5\nconcurrency = -1\n'
        '[task_types.good]\ntarget = "pg:good"\n'
    )
    with pytest.raises(Rejected) as refused:
        async with Tickwright(database_url, config=file):
            pass
    assert refused.value.code == "invalid_config"
    assert str(file) in refused.value.message
    keys = [problem.partition(":")[0] for problem in refused.value.details["problems"]]
    assert keys == ["[partner]", "task_types.mail.target", "task_types.mail.targt", "task_types.mail.timeout",
                    "task_types.mail.concurrency"]  # fmt: skip
    assert 'write "5s" for seconds' in refused.value.message
    assert "did you mean target?" in refused.value.message
    async with Tickwright(database_url) as app:
        assert await app.service.types.list() == []


def test_the_relays_of_polls_in_commands(env: dict[str, str]) -> None:
    """Without Kafka there is nothing to reconcile, and the outbox itself is listed as ever."""
    assert ok("outbox", "--json", env=env).json["items"] == []
    assert ok("outbox", "polls", "--json", env=env).json["items"] == []
    refused = tickwright("outbox", "reconcile", "--json", env=env)
    assert (refused.code, refused.error["code"]) == (1, "no_kafka")
