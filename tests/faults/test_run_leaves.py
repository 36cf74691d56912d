"""Processes that must come to an end: with a function that swallows its cancellation, or no address."""

import signal
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from kit.cli import environment, tickwright
from kit.ports import free_port
from kit.processes import kill_group, spawn
from kit.servers import RabbitServer
from kit.waiting import eventually
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


@pytest.mark.parametrize("url", ["notaurl", "http://host/", "amqp://", "amqp://u:c4n4ry@host:port/", "amqps:///v"])
def test_what_is_no_address_of_rabbitmq_is_refused_at_once(database_url: str, url: str) -> None:
    """One line and exit code 2, not a loop of crashes; the address, which may hold a password, is not repeated."""
    said = tickwright("run", "fanout-consumer", env=environment(DATABASE_URL=database_url, AMQP_URL=url))
    assert said.code == 2
    assert "TICKWRIGHT_AMQP_URL" in said.err
    assert "amqp://USER:PASSWORD@HOST:PORT/VHOST" in said.err
    assert "c4n4ry" not in said.err
    assert "Traceback" not in said.err


def test_a_consumer_that_may_not_have_its_queues_ends_at_its_start(
    rabbit_server: RabbitServer, database_url: str
) -> None:
    """Somebody has to give it the rights: one line and an exit code, not a service that crashes again and again."""
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
