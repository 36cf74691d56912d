"""A user's module: one function and a row per entity, in a program of their own, through a real RabbitMQ."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from kit.rabbit_tasks import Fanout
from kit.servers import RabbitServer
from kit.waiting import eventually_async
from tickwright import EntityTask, Rejected, Tickwright, Unavailable


async def test_a_function_is_called_for_every_entity_that_names_its_module(
    database_url: str, rabbit_server: RabbitServer
) -> None:
    """By ``@app.module`` and ``app.entities``; explain shows what became of it, and what its gate and handlers are."""
    queues = Fanout(rabbit_server.url)
    app = Tickwright(
        database_url, amqp_url=rabbit_server.url, amqp_prefix=queues.names.prefix, metrics_bind="127.0.0.1:0"
    )
    polled: dict[str, EntityTask] = {}

    @app.module("CHARGING", every="1d", timeout="5s")
    async def charging(task: EntityTask) -> None:
        polled[task.entity_code] = task

    try:
        async with app:
            running = asyncio.create_task(app.run_worker(roles=["scheduler", "fanout-consumer"]))
            await app.entities.put("NL.A", party={"country": "NL"}, modules=["CHARGING", "SESSIONS"])
            await app.entities.put("NL.B", modules="CHARGING,TARIFFS", enabled=False)
            await app.entities.put("NL.C", modules="charging")
            await eventually_async(lambda: _both(polled), 30)

            async def told() -> bool:
                return (await app.entities.explain("NL.A", "CHARGING")).status == "ran"

            await eventually_async(told)
            ran = await app.entities.explain("NL.A", "CHARGING")
            assert [reason.code for reason in ran.reasons] == ["window_ran", "succeeded"]
            assert dict(polled["NL.A"].party) == {"country": "NL"}
            assert sorted(polled) == ["NL.A", "NL.C"]
            gated = await app.entities.explain("NL.A", "SESSIONS")
            assert [gated.status, *(reason.code for reason in gated.reasons)] == [
                "not_polled", "module_closed", "never_succeeded",
            ]  # fmt: skip
            await app.entities.enable("NL.B")
            unable = await app.entities.explain("NL.B", "TARIFFS")
            assert "no_handler" in [reason.code for reason in unable.reasons]
            module = (await app.entities.get("NL.A")).modules[0]
            assert (module.name, module.failures, module.last_window_at) == ("CHARGING", 0, module.window_at)
            running.cancel()
            await asyncio.wait([running])
    finally:
        await queues.remove()


async def _both(polled: dict[str, EntityTask]) -> bool:
    return len(polled) >= 2


async def test_a_program_sets_and_reads_entities(database_url: str) -> None:
    """The whole of the facade, with the errors of the REST API."""
    app = Tickwright(database_url)
    with pytest.raises(Unavailable, match="not open"):
        _ = app.entities
    async with app:
        made = await app.entities.put("a", party={"id": uuid4()}, modules="CDRS")
        assert (made.created, made.entity.config_version) == (True, 1)
        assert (await app.entities.pause("a")).is_polling_enabled is False
        page = await app.entities.list(module="cdrs", enabled=False, q="a", limit=1)
        assert [entity.code for entity in page.items] == ["a"]
        await app.entities.delete("a")
        with pytest.raises(Rejected) as caught:
            await app.entities.get("a")
        assert caught.value.code == "entity_not_found"
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"party": {"a": float("nan")}}, "non_finite_number"),
            ({"party": {"a": "\0"}}, "unsupported_character"),
            ({"party": {"a": {1, 2}}}, "invalid_payload"),
            ({"party": [1]}, "invalid_payload"),
            ({"party": {"token": "abc"}}, "plain_secret"),
            ({"modules": "NOSUCH"}, "unknown_module"),
            ({"partner": "unknown"}, "unknown_partner"),
        ]
        for options, code in wrong:
            with pytest.raises(Rejected) as caught:
                await app.entities.put("a", **options)
            assert caught.value.code == code, options
