"""A partner's secret in a file is written, rotated and revoked while a consumer runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kit.consumers import seed
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright import Tickwright
from tickwright.capabilities.polling.consumer import http_courier as partners
from tickwright.capabilities.polling.consumer.http_courier import Couriers
from tickwright.store.pool import Pool, open_pool


@dataclass
class Partner:
    """A partner that answers one token only.

    Attributes:
        folder: Where the secret's files are.
        port: Where it listens.
        seen: Tokens that it was called with.
        made: Couriers that were made from its settings and secrets, the newest last.
    """

    folder: Path
    port: int = 0
    seen: list[str] = field(default_factory=list)
    made: list[Any] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        """Record the token."""
        self.seen.append(request.headers["authorization"].removeprefix("Bearer "))
        return web.json_response({"status": "moving"})

    async def is_read(self, token: str | None) -> None:
        """Wait until the consumer has read this token, or that there is none."""

        def newest() -> bool:
            schema = self.made[-1].schema if self.made else None
            return bool(self.made) and (schema and schema.headers["authorization"]) == (token and f"Bearer {token}")

        await eventually_async(newest, 30, what=f"{token} is read")

    def write(self, name: str, text: str) -> None:
        """Write a file of the secret."""
        (self.folder / name).write_text(text)

    async def queue_polls(self, pool: Pool, count: int) -> None:
        """Queue polls of this partner."""
        http = {
            "url": f"http://127.0.0.1:{self.port}/{{external_id}}",
            "status": "status",
            "headers": {"authorization": "Bearer ${file:tok}"},
        }
        await seed(pool, count, rate="100/s", http=http)


@asynccontextmanager
async def partner_of(url: str, folder: Path, patch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Partner, Pool]]:
    """Run the partner and a consumer that reads secrets in ``folder``."""
    patch.setattr(partners, "SETTINGS_MAX_AGE_S", 0.1)
    patch.setenv("TICKWRIGHT_SECRETS_DIR", str(folder))
    partner, make = Partner(folder), Couriers._make

    def recorded(couriers: Couriers, *given: Any) -> Any:
        partner.made.append(make(couriers, *given))
        return partner.made[-1]

    patch.setattr(Couriers, "_make", recorded)
    partner.write("tok.hosts", "127.0.0.1")
    served = web.Application()
    served.router.add_get("/{id}", partner.answer)
    runner = web.AppRunner(served)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    partner.port = runner.addresses[0][1]
    pool = await open_pool(url, max_size=2)
    try:
        async with Tickwright(url, allow_targets="127.0.0.1", metrics_bind="127.0.0.1:0") as app:
            running = asyncio.create_task(app.run_worker(roles=["poll-consumer"]))
            yield partner, pool
            running.cancel()
            await asyncio.wait([running])
    finally:
        await pool.close()
        await runner.cleanup()


async def check_rotated(url: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """The file is changed while the consumer keeps its connections."""
    async with partner_of(url, folder, patch) as (partner, pool):
        partner.write("tok", "first-token\n")
        await partner.queue_polls(pool, 2)
        await eventually_async(lambda: partner.seen, 30, what="it was called")
        partner.write("tok", "second-token\n")
        await partner.is_read("second-token")
        await partner.queue_polls(pool, 4)
        await eventually_async(lambda: "second-token" in partner.seen, 30, what="it was called with the new one")


async def test_a_secret_that_is_rotated_is_used(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a restart of the consumer."""
    await check_rotated(database_url, tmp_path, monkeypatch)


async def test_a_secret_that_is_written_later_is_used(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the partner could not be called, and the error said to write the file."""
    async with partner_of(database_url, tmp_path, monkeypatch) as (partner, pool):
        await partner.queue_polls(pool, 2)
        await partner.is_read(None)
        partner.write("tok", "first-token\n")
        await eventually_async(lambda: partner.seen, 30, what="it was called")


async def test_a_secret_whose_host_is_revoked_is_sent_nowhere(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer calls the partner no more."""
    async with partner_of(database_url, tmp_path, monkeypatch) as (partner, pool):
        partner.write("tok", "first-token\n")
        await partner.queue_polls(pool, 2)
        await eventually_async(lambda: len(partner.seen) >= 2, 30, what="it was called")
        partner.write("tok.hosts", "another.example")
        await partner.is_read(None)
        before = list(partner.seen)
        await partner.queue_polls(pool, 4)
        partner.write("tok", "second-token\n")
        partner.write("tok.hosts", "127.0.0.1")
        await eventually_async(lambda: "second-token" in partner.seen, 30, what="it was called again")
        assert partner.seen.count("first-token") == len(before)


async def test_the_suite_notices_a_secret_that_is_read_once(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: a courier stays until the settings change."""
    mutate(monkeypatch, Couriers.of, " or monotonic() - made.read_s >= SETTINGS_MAX_AGE_S", "")
    with pytest.raises(AssertionError, match="second-token is read"):
        await check_rotated(database_url, tmp_path, monkeypatch)
