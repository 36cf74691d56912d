"""A user's partner: one function, or a table of the TOML file, and the role that asks it."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web

from kit.consumers import all_done, http_of, seed
from kit.partners import Courier
from kit.waiting import eventually_async
from tickwright import Answer, Poll, Rejected, Tickwright
from tickwright.capabilities.polling.consumer.courier import CourierRegistry
from tickwright.capabilities.polling.consumer.http_courier import Couriers
from tickwright.observe.logs import without_secrets
from tickwright.partners.settings import PartnerSettings
from tickwright.process.settings import load_settings
from tickwright.store.pool import open_pool


async def test_a_function_is_asked_for_every_poll_of_its_partner(database_url: str) -> None:
    """``@app.partner`` registers its limits, and the role poll-consumer calls it."""
    app = Tickwright(database_url, metrics_bind="127.0.0.1:0")
    asked: list[Poll] = []

    @app.partner("dhl", rate="500/s", concurrency=20, timeout="5s")
    async def dhl(poll: Poll) -> Answer:
        asked.append(poll)
        return Answer("moving")

    async with app:
        running = asyncio.create_task(app.run_worker(roles=["poll-consumer"]))
        pool = await open_pool(database_url, max_size=1)

        async def declared() -> bool:
            settings = await pool.fetchval("SELECT settings FROM tickwright.partners WHERE name = 'dhl'")
            return settings is not None

        await eventually_async(declared)
        settings = await pool.fetchval("SELECT settings::text FROM tickwright.partners WHERE name = 'dhl'")
        assert settings == '{"rate": "500/s", "timeout": "5s", "concurrency": 20}'
        trackers = await seed(pool, 5, name="dhl", rate="500/s")
        await eventually_async(lambda: all_done(pool, trackers))
        assert sorted(poll.external_id for poll in asked) == trackers.external_ids
        assert (await app.trackers.service.partners.get("dhl")).called_by == "function"
        assert {(poll.partner, poll.account_id, poll.due_at) for poll in asked} == {("dhl", "shop", trackers.due_at)}
        running.cancel()
        await asyncio.wait([running])
        await pool.close()


async def test_a_partner_of_the_toml_file_needs_no_code(database_url: str, tmp_path: Path) -> None:
    """URL, paths and statuses are configuration; an address has to be allowed."""
    config = tmp_path / "tickwright.toml"
    async with Courier() as courier:
        http = "\n".join(f'{key} = "{value}"' for key, value in http_of(courier).items())
        config.write_text(f'[partners.acme]\nrate = "100/s"\n[partners.acme.http]\n{http}\n', encoding="utf-8")
        app = Tickwright(database_url, config=config, allow_targets="127.0.0.1", metrics_bind="127.0.0.1:0")
        async with app:
            running = asyncio.create_task(app.run_worker(roles=["poll-consumer"]))
            pool = await open_pool(database_url, max_size=1)

            async def declared() -> bool:
                return bool(
                    await pool.fetchval("SELECT settings ? 'http' FROM tickwright.partners WHERE name = 'acme'")
                )

            await eventually_async(declared)
            trackers = await seed(pool, 4, rate="100/s", http=http_of(courier))
            await eventually_async(lambda: all_done(pool, trackers))
            assert sorted(courier.asked) == trackers.external_ids
            running.cancel()
            await asyncio.wait([running])
            await pool.close()


def test_a_wrong_declaration_is_refused_with_every_mistake() -> None:
    """At import time, before anything runs."""
    app = Tickwright()
    with pytest.raises(Rejected) as caught:
        app.partner("d h l", rate="fast", concurrency=0)(_ask)
    assert len(caught.value.details["problems"]) == 3
    app.partner("dhl")(_ask)
    with pytest.raises(Rejected, match="two functions"):
        app.partner("dhl")(_ask)


async def _ask(_poll: Poll) -> Answer:
    return Answer("moving")


async def asked_with(
    authorization: str, monkeypatch: pytest.MonkeyPatch, host: str = "127.0.0.1", **environment: str
) -> list[str | None]:
    """Let a partner by configuration be asked once; return the header as its courier got it, if it was called."""
    got: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        got.append(request.headers.get("authorization"))
        return web.json_response({"status": "moving"})

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    server = web.Application()
    server.router.add_get("/{id}", answer)
    runner = web.AppRunner(server)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://{host}:{runner.addresses[0][1]}/{{external_id}}"
    couriers = Couriers(load_settings(allow_targets="127.0.0.1"), CourierRegistry())
    terms = PartnerSettings(http={"url": url, "status": "status", "headers": {"authorization": authorization}})
    courier = couriers.of("acme", terms)
    if courier is not None:
        now = datetime.now(UTC)
        assert await courier(Poll("p", 1, "A1", "shop", "acme", now, timedelta(seconds=5))) == Answer("moving")
    await couriers.aclose()
    await runner.cleanup()
    return got


async def test_a_partners_headers_carry_declared_secrets_to_declared_hosts_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An admin who sets the URL and the headers gets neither another variable nor another host."""
    own = {"TICKWRIGHT_SECRET_KEY": "abc", "TICKWRIGHT_SECRET_HOSTS_KEY": "127.0.0.1, localhost"}
    assert await asked_with("Bearer ${env:KEY}", monkeypatch, **own) == ["Bearer abc"]
    assert await asked_with("${env:TICKWRIGHT_SECRET_KEY}", monkeypatch, **own) == ["abc"]
    fake = {"AWS_SECRET_ACCESS_KEY": "canary", "TICKWRIGHT_DATABASE_URL": "postgresql://u:canary@h/d"}
    for name in fake:
        assert await asked_with(f"Bearer ${{env:{name}}}", monkeypatch, **fake) == []
    at_name = {**own, "host": "localhost"}
    assert await asked_with("Bearer ${env:KEY}", monkeypatch, **at_name) == []  # without TLS, as for an entity's party
    at_name["TICKWRIGHT_SECRET_HOSTS_KEY"] = "http://localhost"
    assert await asked_with("Bearer ${env:KEY}", monkeypatch, **at_name) == ["Bearer abc"]
    foreign = {**own, "TICKWRIGHT_SECRET_HOSTS_KEY": "cpo.example"}
    assert await asked_with("Bearer ${env:KEY}", monkeypatch, **foreign) == []
    assert await asked_with("Bearer ${env:KEY}", monkeypatch, TICKWRIGHT_SECRET_HOSTS_KEY="") == []


async def test_a_secret_that_was_written_after_the_start_is_masked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file that is rotated: what repeats its text later, such as an error, is kept and shown without it."""
    (tmp_path / "key").write_text("canary-of-a-file")
    (tmp_path / "key.hosts").write_text("127.0.0.1")
    monkeypatch.setenv("TICKWRIGHT_SECRETS_DIR", str(tmp_path))
    assert await asked_with("${file:key}", monkeypatch) == ["canary-of-a-file"]
    assert "canary" not in without_secrets("Invalid isoformat string: 'canary-of-a-file'")
