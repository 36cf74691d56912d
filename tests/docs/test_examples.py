"""Every example runs as its page says."""

import asyncio
import importlib.util
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest
from aiohttp import web
from standardwebhooks import Webhook

from kit.cli import environment
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


async def test_the_shop_reminds_of_the_order_that_was_committed(database_url: str) -> None:
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
    await db.close()


async def test_plain_sql_does_what_its_page_says(database_url: str) -> None:
    """The page's block runs as it is: three jobs, one of them moved and one cancelled, and a message."""
    [block] = re.findall(r"```sql\n(.*?)```", (EXAMPLES / "sql_only/README.md").read_text(), re.DOTALL)
    db = await asyncpg.connect(database_url)
    await db.execute(block)
    rows = await db.fetch("SELECT payload, status, priority FROM tickwright.scheduled_tasks ORDER BY id")
    assert [(row["payload"], row["status"], row["priority"]) for row in rows] == [
        ('{"report": 7}', "cancelled", 0),
        ('{"report": 8}', "pending", 0),
        ('{"report": 9}', "pending", 10),
    ]
    assert await db.fetchval("SELECT count(*) FROM tickwright.outbox") == 1
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
async def test_the_receiver_refuses_strangers_and_old_attempts(
    fences: list[int], statuses: list[int], signed: bool
) -> None:
    """A repeated message is done once; a lower fence is refused; a wrong signature is nobody."""
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
