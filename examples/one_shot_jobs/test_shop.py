"""Tests of the shop: its handler alone, and its order with its reminder on a database that resets."""

import pytest
import shop

from tickwright.testing import OpenApp, assert_scheduled, perform, refute_scheduled


async def test_a_reminder_names_its_order(capsys: pytest.CaptureFixture[str]) -> None:
    """The handler alone, without a database."""
    await perform(shop.remind, order_id=42)
    assert "reminding of order 42" in capsys.readouterr().out
    assert shop.reminded.get_nowait() == 42


async def test_an_order_has_a_reminder_and_a_lost_order_has_none(tickwright_app: OpenApp) -> None:
    """Both are in one transaction; two seconds later the reminder runs, without waiting for them."""
    async with tickwright_app(shop.app) as app:
        await app.pool.execute("CREATE TABLE shop_orders (id bigint GENERATED ALWAYS AS IDENTITY, customer text)")
        async with app.pool.acquire() as connection:
            async with connection.transaction():
                kept = await shop.take_order(connection, "ann")
            transaction = connection.transaction()
            await transaction.start()
            lost = await shop.take_order(connection, "bob")
            await transaction.rollback()
        await assert_scheduled(app, shop.remind.options(delay="2s", key=f"remind-{kept}"), order_id=kept, count=1)
        await refute_scheduled(app, shop.remind, order_id=lost)
        assert (await app.drain()).jobs == []
        assert (await app.drain(until="2s")).counts == {"completed": 1}
        assert shop.reminded.get_nowait() == kept
