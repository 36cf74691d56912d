"""``tickwright bench protocol``: jobs through the worker protocol of one ``api``, in batches of 100.

Clients in processes of their own claim a batch, complete it, and claim again; each connection is one registered worker.
They do little else: what they take, the API and PostgreSQL do not have. Each client notes the ids of the jobs that it
completed, so lost and duplicate jobs are counted from what clients saw.
"""

import argparse
import asyncio
import json
import multiprocessing
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import uvloop

from tickwright.bench.ground import Ground, wait_until
from tickwright.bench.http.rest import free_port
from tickwright.bench.jobs import SQL
from tickwright.bench.report import Figures, median, run_bench

BARS = {"jobs_per_s": "≥ 5,000", "lost": "= 0", "duplicates": "= 0"}
TYPE = "remote"
PROCESSES = 2
WITHIN_S = 300


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--jobs", type=int, default=100_000, help="jobs per run")
        parser.add_argument("--batch", type=int, default=100, help="jobs per claim")
        parser.add_argument("--workers", type=int, default=8, help="remote workers, in two processes")
        parser.add_argument("--runs", type=int, default=5, help="runs; the median counts")

    return run_bench("protocol", arguments, _measure, options=options, bars=BARS)


def _measure(ground: Ground, options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    rates, lost, duplicates = list[float](), 0, 0
    for _ in range(options.runs):
        rate, seen = _one_run(ground, options)
        rates.append(rate)
        lost += options.jobs - len(seen) + ground.left(TYPE)
        duplicates += seen.total() - len(seen)
    say(f"jobs a second: {[round(rate) for rate in rates]}")
    return {"jobs_per_s": median(rates), "lost": lost, "duplicates": duplicates}


def _one_run(ground: Ground, options: argparse.Namespace) -> tuple[float, "Counter[int]"]:
    """Return jobs a second from the first claim to the last answer, and how often each job was completed."""
    ground.clear()
    ground.run("INSERT INTO tickwright.task_types (name, target) VALUES (%s, 'remote:bench')", TYPE)
    ground.run(SQL["fill_due"], TYPE, options.jobs)
    ground.run(SQL["settle"])
    port = free_port()
    key = json.loads(ground.command("keys", "create", "bench", "--json"))["key"]
    api = ground.launch("api", environment={"TICKWRIGHT_API_BIND": f"127.0.0.1:{port}"})
    wait_until(lambda: api.poll() is not None or _listens(port), 30, "the API to listen")
    spawn = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    clients = []
    for _ in range(PROCESSES):
        ours, theirs = spawn.Pipe()
        given = theirs, f"http://127.0.0.1:{port}", key, options.workers // PROCESSES, options.batch
        clients.append(spawn.Process(target=_work, args=given, daemon=True))
        clients[-1].start()
        pipes.append(ours)
    try:
        for pipe in pipes:
            pipe.recv()  # registered
        began = time.perf_counter()
        for pipe in pipes:
            pipe.send("begin")
        wait_until(lambda: not (ground.left(TYPE) and all(map(_is_alive, clients))), WITHIN_S, "an end", check_s=0.02)
        seconds = time.perf_counter() - began
        for pipe in pipes:
            pipe.send("end")
        return options.jobs / seconds, sum((Counter(pipe.recv()) for pipe in pipes), Counter[int]())
    finally:
        for client in clients:
            client.kill()
            client.join()
        ground.stop()


def _is_alive(client: Any) -> bool:
    return bool(client.is_alive())


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _work(pipe: Connection, url: str, key: str, workers: int, batch: int) -> None:
    uvloop.run(_work_all(pipe, url, key, workers, batch))


async def _work_all(pipe: Connection, url: str, key: str, workers: int, batch: int) -> None:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    completed: list[int] = []
    async with aiohttp.ClientSession(url, headers=headers, connector=aiohttp.TCPConnector(limit=0)) as http:
        sessions = [await _register(http) for _ in range(workers)]
        pipe.send("registered")
        await asyncio.to_thread(pipe.recv)
        working = [asyncio.create_task(_work_on(http, session, batch, completed)) for session in sessions]
        ending = asyncio.ensure_future(asyncio.to_thread(pipe.recv))
        await asyncio.wait([ending, *working], return_when=asyncio.FIRST_COMPLETED)
        for task in working:
            if task.done():
                task.result()  # a worker ends by an error only
        await asyncio.sleep(0.2)  # for answers on their way
        for task in working:
            task.cancel()
    pipe.send(completed)


async def _register(http: aiohttp.ClientSession) -> str:
    body = {"name": "bench", "pool": "bench", "types": [TYPE], "client": "bench"}
    return str((await _post(http, "register", body, {}))["session"])


async def _work_on(http: aiohttp.ClientSession, session: str, batch: int, completed: list[int]) -> None:
    """Work under a session, and under another one when it is lost."""
    while True:
        beating = asyncio.create_task(_beat(http, session))
        try:
            await _one_worker(http, session, batch, completed)
        except _SessionLostError as error:
            sys.stderr.write(f"{error}\n")
            session = await _register(http)
        finally:
            beating.cancel()


async def _beat(http: aiohttp.ClientSession, session: str) -> None:
    while True:
        await asyncio.sleep(2)
        with suppress(_TryAgainError, _SessionLostError):
            await _post(http, "heartbeat", {"held": []}, {"Tickwright-Session": session})


async def _one_worker(http: aiohttp.ClientSession, session: str, batch: int, completed: list[int]) -> None:
    """Work as the protocol says: a call without a good answer is repeated, and a claim then says what is held."""
    number, headers, unsure = 0, {"Tickwright-Session": session}, False
    while True:
        number += 1
        body = {"claim": number, "max": batch, "wait": "5s", **({"held": []} if unsure else {})}
        try:
            claimed = await _post(http, "claim", body, headers)
        except _TryAgainError:
            unsure = True
            continue
        unsure = False
        left = [{"outcome": "complete", "id": job["id"], "fence": job["fence"]} for job in claimed["jobs"]]
        while left:
            try:
                locked = set((await _post(http, "results", {"results": left}, headers))["locked"])
            except _TryAgainError:
                continue
            completed += [result["id"] for result in left if result["id"] not in locked]
            left = [result for result in left if result["id"] in locked]


class _TryAgainError(Exception):
    """No good answer."""


class _SessionLostError(Exception):
    """Others have the jobs of this session."""


async def _post(http: aiohttp.ClientSession, name: str, body: Any, headers: dict[str, str]) -> Any:
    async with http.post(f"/v1/worker/{name}", data=json.dumps(body), headers=headers) as answer:
        if answer.status >= 500:
            sys.stderr.write(f"{name}: {answer.status} {await answer.text()}\n")
            raise _TryAgainError
        if answer.status == 409:
            raise _SessionLostError(await answer.text())
        if answer.status not in {200, 201}:
            raise RuntimeError(f"{name}: {answer.status} {await answer.text()}")
        return json.loads(await answer.read())
