"""``tickwright up`` as a new user has it: one command, a key, jobs that run, and nothing left at the end."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from kit.cli import environment
from kit.ports import free_port
from kit.processes import is_running, kill_group, make_folder, processes_in
from kit.rabbit_reports import Reports
from kit.rabbit_tasks import Fanout
from kit.servers import RabbitServer, RedisServer
from kit.waiting import eventually
from tickwright.cli.live.up import Receiver, open_receiver
from tickwright.demo.receiver import PROVIDERS
from tickwright.transports.rabbitmq.topology import report_exchanges

_ADDRESS = re.compile(r"^  API +(http://\S+)/v1", re.MULTILINE)
_REPORT = re.compile(r"^  report +finished, 5000 rows: tickwright reports download (\d+)$", re.MULTILINE)
_LOANS = re.compile(r"^  loans +(\d+) of 50000 clients are selected, (\d+) applications are made$", re.MULTILINE)
_KEY = re.compile(r"^  key +in the file (\S+)$", re.MULTILINE)


class Up:
    """A running ``tickwright up``."""

    def __init__(self, home: Path, *words: str, **env: str) -> None:
        self.home = home
        self.log = home.parent / "up.log"
        self.log.write_text("")
        with self.log.open("ab") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tickwright", "up", *words],
                stdout=sink,
                stderr=sink,
                stdin=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
                env=environment(HOME=str(home), **env),
            )

    @property
    def text(self) -> str:
        """What it has said so far."""
        return self.log.read_text()

    def ready(self) -> tuple[str, str]:
        """Wait for the address and the key."""

        def told() -> tuple[str, str] | None:
            assert self.process.poll() is None, self.text
            address, key = _ADDRESS.search(self.text), _KEY.search(self.text)
            return (address[1], Path(key[1]).read_text().strip()) if address and key and "Ctrl-C" in self.text else None

        return eventually(told, 60, what=f"up says address and key: {self.log}")  # type: ignore[return-value]

    def ask(self, path: str) -> Any:
        """Ask the API with the key."""
        address, key = self.ready()
        request = Request(f"{address}{path}", headers={"Authorization": f"Bearer {key}"})
        with urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def until_completed(self, task_type: str) -> None:
        """Wait until a job of this type is done."""
        path = f"/v1/jobs?status=completed&task_type={task_type}"
        eventually(lambda: self.ask(path)["items"], 30, what=f"a job of {task_type} completes: {self.log}")

    def children(self) -> list[int]:
        """Return every process that it has started and that lives."""
        found = processes_in(self.home / "postgres" / "data")
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [*found, *(int(pid) for pid in listed)]


@contextmanager
def running(*words: str, home: Path | None = None, **env: str) -> Iterator[Up]:
    """Run ``up`` in a home of its own; whatever is left at the end is killed."""
    folder = home.parent if home is not None else make_folder("up")
    up = Up(folder / "home", *words, API_BIND=env.pop("API_BIND", "127.0.0.1:0"), METRICS_BIND="127.0.0.1:0", **env)
    try:
        yield up
    finally:
        left = processes_in(up.home / "postgres" / "data")
        kill_group(up.process)
        for pid in left:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


def stop(up: Up, *, within_s: float = 60) -> None:
    """Press Ctrl-C once; everything ends well and nothing is left. PostgreSQL writes 1,500 files to the disk first."""
    children = up.children()
    assert len(children) > 2
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(timeout=within_s) == 0, up.text
    assert [pid for pid in children if is_running(pid)] == []


def withdrawals(up: Up) -> str:
    """Return the file of the example's first report; its signed link needs no key and is shown on a terminal only."""
    found = eventually(lambda: _REPORT.search(up.text), 60, what=f"the first report: {up.log}")
    assert "signature=" not in up.text
    address, key = up.ready()
    path = f"/v1/reports/{found[1]}/file"  # type: ignore[index]  # a match, or the wait has failed
    with urlopen(Request(f"{address}{path}", headers={"Authorization": f"Bearer {key}"}), timeout=10) as answer:
        return str(answer.read().decode())


def offered_once_each(up: Up) -> None:
    """Wait until the example's campaign is over: of 50,000 clients the right ones have an application, one each."""
    eventually(lambda: _LOANS.search(up.text), 100, what=f"the campaign's applications: {up.log}")
    [(selected, applications)] = _LOANS.findall(up.text)
    rich = [n for n in range(1, 50_001) if n % 8 == 0 and n * 7919 % 9000 > 3000]
    wanted = sum(n % 100 > 0 and n * 7 % 60 > 7 for n in rich)
    assert (int(selected), int(applications)) == (wanted, wanted)
    assert re.search(
        r"^batch example\.loan 1: IN_PROGRESS for .* chunks \d+/20, seen \d+/50000, ", up.text, re.MULTILINE
    )
    execution = up.ask("/v1/executions/1")
    assert (execution["status"], execution["missing"]) == ("FINISHED", sum(n % 100 == 0 for n in rich))


def test_one_command_starts_everything_and_one_signal_stops_it() -> None:
    """The API answers with the key of the named file, which is private; handlers, callbacks and retries run."""
    with running() as up:
        _, key = up.ready()
        assert up.ask("/v1/session")["role"] == "admin"
        for task_type in ("example.greet", "example.callback", "example.flaky"):
            up.until_completed(task_type)
        assert up.ask("/readyz")["ready"] is True
        assert "set TICKWRIGHT_AMQP_URL, and an OCPI hub comes" in up.text
        assert up.ask("/v1/entities")["items"] == []
        file = up.home / "admin.key"
        assert (file.read_text().strip(), file.stat().st_mode & 0o777) == (key, 0o600)
        assert "tw_" not in up.text
        eventually(lambda: "late: p50" in up.text, 15, what="a status line")
        eventually(lambda: "trackers ≈20000" in up.text, 30, what="the example's trackers have their places")
        assert withdrawals(up).startswith("name,withdrawal,amount,asked_at\r\nuser 1")
        eventually(lambda: re.search(r"^reports \d+: .* finished [1-9].*, 5000 rows", up.text, re.MULTILINE), 15)
        offered_once_each(up)
        stop(up)
        assert "Traceback" not in up.text
        assert "\x1b" not in up.text
        with running(home=up.home) as again:
            assert again.ready()[1] == key
            stop(again)


def test_only_a_terminal_is_shown_the_key() -> None:
    """A pipe, which logs may keep, gets the name of the file, also where colours are forced."""
    with running("--no-example", FORCE_COLOR="1") as up:
        _, key = up.ready()
        stop(up)
        assert key not in up.text
        screen, terminal = os.openpty()
        with subprocess.Popen(
            [sys.executable, "-m", "tickwright", "up", "--no-example"],
            stdout=terminal,
            stderr=terminal,
            stdin=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            env=environment(HOME=str(up.home), API_BIND="127.0.0.1:0", METRICS_BIND="127.0.0.1:0"),
        ) as process:
            os.close(terminal)
            try:
                until_on(screen, key)
                process.send_signal(signal.SIGINT)
                drain(screen)
                assert process.wait(timeout=60) == 0
            finally:
                kill_group(process)
                os.close(screen)


def until_on(screen: int, text: str) -> None:
    """Read a terminal until it shows ``text``."""
    seen = b""
    while text.encode() not in seen:
        said = os.read(screen, 65536)  # fails when the process has ended, as a terminal does
        seen += said


def drain(screen: int) -> None:
    """Read a terminal until nothing writes to it any more."""
    with suppress(OSError):
        while os.read(screen, 65536):
            pass


@pytest.mark.storm
def test_a_busy_port_is_replaced_and_reported() -> None:
    """The other program keeps the port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        port = taken.getsockname()[1]
        with running("--no-example", API_BIND=f"127.0.0.1:{port}") as up:
            assert f"(port {port} is in use)" in (up.ready(), up.text)[1]
            assert up.ask("/v1/task-types")["items"] == []
            stop(up)


def test_a_signal_during_the_start_stops_what_was_started() -> None:
    """Nothing is left of a start that was interrupted."""
    with running() as up:
        data = up.home / "postgres" / "data"
        eventually(lambda: data.exists() and processes_in(data), 30, what="PostgreSQL is on its way")
        up.process.send_signal(signal.SIGTERM)
        up.process.wait(timeout=30)
        eventually(lambda: not processes_in(data), what="PostgreSQL is gone")


async def test_the_receiver_ends_with_its_parent() -> None:
    """It ends when its standard input is closed, so not even kill -9 of its parent leaves it behind."""
    async with open_receiver() as receiver:
        assert isinstance(receiver, Receiver)
        pid = receiver.process.pid
        assert receiver.port > 0
        assert receiver.process.stdin is not None
        receiver.process.stdin.close()
        await asyncio.wait_for(receiver.process.wait(), 10)
    assert not is_running(pid)


@pytest.mark.storm
def test_a_killed_up_leaves_work_that_the_next_one_finishes() -> None:
    """Kill -9 in the middle: the next start joins the server, runs what is due, and ends clean."""
    with running() as up:
        up.until_completed("example.greet")
        before = up.ask("/v1/jobs?limit=1")["items"][0]["id"]
        os.kill(up.process.pid, signal.SIGKILL)
        up.process.wait(timeout=10)
        with running(home=up.home) as again:
            eventually(
                lambda: (
                    again.ask(f"/v1/jobs/{before}")["status"] == "completed"
                    or again.ask(f"/v1/jobs/{before}")["status"] in {"failed", "cancelled"}
                ),
                60,
                what=f"job {before} ends",
            )
            stop(again)


@asynccontextmanager
async def running_with_hub(rabbit: RabbitServer, redis: RedisServer) -> AsyncIterator[Up]:
    """Run ``up`` beside a RabbitMQ and a Redis, under names of the test's own."""
    queues, reports = Fanout(rabbit.url), Reports(rabbit.url)
    prefix = queues.names.prefix
    reports.shared = report_exchanges(prefix)
    for listener in ("users", "withdrawals"):
        reports.names(listener)
    try:
        with running(AMQP_URL=rabbit.url, AMQP_PREFIX=prefix, REDIS_URL=redis.url, REDIS_PREFIX=prefix) as up:
            yield up
    finally:
        await queues.remove()
        await reports.remove()


def hub_consumers(up: Up) -> list[int]:
    """Return the pids of the sessions that work for the hub, once all three are there."""

    def three() -> list[int]:
        found = [one["name"] for one in up.ask("/v1/workers")["items"] if one["roles"] == ["fanout-consumer"]]
        return [int(name.rpartition(":")[2]) for name in found] if len(found) == 3 else []

    return eventually(three, 60, what=f"three consumers of the hub: {up.log}")


def asked(up: Up, *, since: str = "") -> dict[str, str]:
    """Return when each provider's last run that succeeded began, where that is after ``since``."""
    found = {code: up.ask(f"/v1/entities/{code}")["modules"][0]["last_success_at"] for code in PROVIDERS}
    return {code: at for code, at in found.items() if at is not None and at > since}


@pytest.mark.storm
async def test_with_rabbitmq_the_example_has_a_hub(rabbit_server: RabbitServer, redis_server: RedisServer) -> None:
    """Three consumers of one slot ask four providers, again in the next window; all of it ends with ``up``."""
    async with running_with_hub(rabbit_server, redis_server) as up:
        consumers = hub_consumers(up)
        eventually(lambda: len(asked(up)) == len(PROVIDERS), 60, what=f"each provider was asked: {up.log}")
        first = max(asked(up).values())
        eventually(lambda: len(asked(up, since=first)) == len(PROVIDERS), 60, what=f"and once more: {up.log}")
        eventually(lambda: re.search(r"^hub: DE\.SLO (is )?asked .* · NL\.ONE ", up.text, re.MULTILINE), 15)
        assert set(consumers) <= set(up.children())
        stop(up)
        assert "Traceback" not in up.text


@pytest.mark.storm
async def test_the_hubs_consumers_die_with_a_killed_up(rabbit_server: RabbitServer, redis_server: RedisServer) -> None:
    """Kill -9 leaves none of them; without RabbitMQ the next start polls no entity of the hub."""
    async with running_with_hub(rabbit_server, redis_server) as up:
        consumers = hub_consumers(up)
        eventually(lambda: asked(up), 60, what=f"a provider was asked: {up.log}")
        os.kill(up.process.pid, signal.SIGKILL)
        up.process.wait(timeout=10)
        eventually(lambda: not any(is_running(pid) for pid in consumers), 30, what="the consumers are gone")
        with running(home=up.home) as again:
            again.ready()
            eventually(
                lambda: [one["is_polling_enabled"] for one in again.ask("/v1/entities")["items"]] == [False] * 4,
                30,
                what="the hub's entities are paused",
            )
            stop(again)
