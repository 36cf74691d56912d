"""Processes that must come to an end: with a function that swallows its cancellation, or no address."""

import asyncio
import signal
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from kit.cli import environment, tickwright
from kit.engine import insert
from kit.ports import free_port
from kit.processes import kill_group, spawn
from kit.servers import RabbitServer
from kit.waiting import eventually, eventually_async
from tickwright.store.pool import open_pool

_PROGRAM = """
import asyncio
from tickwright import Tickwright

app = Tickwright()


@app.module("LOCATIONS", every="1h")
async def deaf(task):
    print("called", flush=True)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
"""


@pytest.mark.storm
async def test_a_function_that_swallows_its_cancellation_does_not_hold_the_process(
    database_url: str, tmp_path: Path
) -> None:
    """Asked to end, a process ends with code 0 and says why it did not wait: else a deploy waits for ever."""
    (tmp_path / "deaf_program.py").write_text(_PROGRAM)
    pool = await open_pool(database_url, max_size=1)
    await pool.execute("INSERT INTO tickwright.entities (code, polling_enabled_modules) VALUES ('A', 'LOCATIONS')")
    pool.terminate()
    env = environment(
        DATABASE_URL=database_url,
        APP="deaf_program:app",
        METRICS_BIND=f"127.0.0.1:{free_port()}",
        DRAIN="0s",
        LOG_FORMAT="json",
    )
    log = tmp_path / "log"
    words = [sys.executable, "-m", "tickwright", "run", "scheduler", "fanout-consumer"]
    process = spawn(words, log, {**env, "PYTHONPATH": f"{tmp_path}:{env.get('PYTHONPATH', '')}"})
    try:
        eventually(lambda: "called" in log.read_text(), 30, what="the function was called")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=40) == 0
    finally:
        kill_group(process)
    assert "run.functions_ignore_cancel" in log.read_text()


_DEAF_PROGRAM = """
import asyncio
import os
from tickwright import Tickwright

app = Tickwright()


async def do(what):
    while "DEAF" in os.environ:
        print(what, "begins", flush=True)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass


@app.job("work", timeout="1h")
async def work(job):
    await do("job")


async def one(run):
    yield {}


async def slow(run):
    await do("plan")
    yield {}


@app.batch("chunks", plan=one)
async def chunks(chunk):
    await do("chunk")


@app.batch("plans", plan=slow)
async def plans(chunk):
    pass


@app.listener("numbers")
async def numbers(request):
    await do("part")
    yield {"n": 1}


@app.report("numbers", listeners=["numbers"])
def report():
    return "SELECT n FROM numbers"
"""
_OWNERS = """
SELECT count(*)
  FROM (SELECT owner FROM tickwright.scheduled_tasks
        UNION ALL SELECT owner FROM tickwright.executions
        UNION ALL SELECT owner FROM tickwright.execution_chunks
        UNION ALL SELECT owner FROM tickwright.reports
        UNION ALL SELECT owner FROM tickwright.report_parts) AS t
 WHERE t.owner IS NOT NULL AND NOT EXISTS (SELECT FROM tickwright.workers w WHERE w.id = t.owner)
"""
_ENDED = """
SELECT (SELECT count(*) FROM tickwright.scheduled_tasks WHERE status = 'completed')
     + (SELECT count(*) FROM tickwright.executions WHERE status = 'FINISHED')
     + (SELECT count(*) FROM tickwright.reports WHERE status = 'finished')
"""


@pytest.mark.storm
async def test_work_that_ignores_its_cancellation_is_taken_over_after_an_orderly_stop(
    database_url: str, tmp_path: Path
) -> None:
    """A job, the plan of an execution, a chunk and a part of a report: none is left to a session that is gone."""
    (tmp_path / "deaf_program.py").write_text(_DEAF_PROGRAM)
    env = environment(
        DATABASE_URL=database_url,
        APP="deaf_program:app",
        HOME=str(tmp_path),
        METRICS_BIND=f"127.0.0.1:{free_port()}",
        DRAIN="0s",
        LOG_FORMAT="json",
    )
    env = {**env, "PYTHONPATH": f"{tmp_path}:{env.get('PYTHONPATH', '')}"}
    words = [sys.executable, "-m", "tickwright", "run", "scheduler", "worker", "campaign-consumer", "report-listener"]
    logs = tmp_path / "deaf.log", tmp_path / "sound.log"
    processes = [spawn(words, logs[0], {**env, "DEAF": "1"})]
    try:
        async with await open_pool(database_url, max_size=2) as pool:
            await eventually_async(lambda: pool.fetchval("SELECT count(*) = 2 FROM tickwright.batches"), 60)
            await insert(pool, "work")
            for asked in (
                ("batches", "start", "chunks"),
                ("batches", "start", "plans"),
                ("reports", "request", "numbers"),
            ):
                assert tickwright(*asked, env=env).code == 0
            begun = {f"{what} begins" for what in ("job", "chunk", "plan", "part")}
            await eventually_async(lambda: begun <= {*logs[0].read_text().splitlines()}, 60, what="all is under way")
            processes[0].send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(processes[0].wait, 120) == 0
            assert await pool.fetchval(_OWNERS) == 0
            processes.append(spawn(words, logs[1], env))
            await eventually_async(lambda: pool.fetchval(f"SELECT ({_ENDED}) = 4"), 120, what="all has ended")
    finally:
        for process in processes:
            kill_group(process)


@pytest.mark.parametrize("url", ["notaurl", "http://host/", "amqp://", "amqp://u:c4n4ry@host:port/", "amqps:///v"])
def test_an_invalid_address_of_rabbitmq_is_refused_at_once(database_url: str, url: str) -> None:
    """One line and exit code 2, not a loop of crashes; the address, which may hold a password, is not repeated."""
    said = tickwright("run", "fanout-consumer", env=environment(DATABASE_URL=database_url, AMQP_URL=url))
    assert said.code == 2
    assert "TICKWRIGHT_AMQP_URL" in said.err
    assert "amqp://USER:PASSWORD@HOST:PORT/VHOST" in said.err
    assert "c4n4ry" not in said.err
    assert "Traceback" not in said.err


def test_a_consumer_without_rights_to_its_queues_ends_at_its_start(
    rabbit_server: RabbitServer, database_url: str
) -> None:
    """An administrator has to grant them: one line and an exit code, not a service that crashes again and again."""
    user = f"u{uuid4().hex[:8]}"
    rabbit_server.control("add_user", user, "c4n4ry")
    rabbit_server.control("set_permissions", user, "^none$", ".*", ".*")
    url = rabbit_server.url.replace("guest:guest", f"{user}:c4n4ry")
    env = environment(DATABASE_URL=database_url, AMQP_URL=url, METRICS_BIND=f"127.0.0.1:{free_port()}")
    said = tickwright("run", "fanout-consumer", env={**env, "TICKWRIGHT_AMQP_PREFIX": user})
    assert said.code == 1
    assert "give it the rights to configure, write and read" in said.err
    assert "c4n4ry" not in said.err
    assert "Traceback" not in said.err
