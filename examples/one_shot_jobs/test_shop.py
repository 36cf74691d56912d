"""Tests of the shop: its handler alone, and its order with its reminder on a database that resets."""

import shop

from tickwright.testing import OpenApp, assert_scheduled, perform


async def test_a_reminder_names_its_order() -> None:
    """The handler alone, without a database."""
    assert await perform(shop.remind, order_id=42) == "order 42: reminded"


async def test_an_order_has_a_reminder_and_a_lost_order_has_none(tickwright_app: OpenApp) -> None:
    """Both are in one transaction; two seconds later the reminder runs, without waiting for them."""
    async with tickwright_app(shop.app) as app:
        await app.pool.execute("CREATE TABLE shop_orders (id bigint GENERATED ALWAYS AS IDENTITY, customer text)")
        async with app.pool.acquire() as connection:
            async with connection.transaction():
                reminder = await shop.take_order(connection, "ann")
            transaction = connection.transaction()
            await transaction.start()
            await shop.take_order(connection, "bob")
            await transaction.rollback()
        [job] = await assert_scheduled(app, shop.remind.options(delay="2s"), count=1)
        assert (job.id, job.key) == (reminder.id, f"remind-{job.payload['order_id']}")
        assert (await app.drain()).jobs == []
        assert (await app.drain(until="2s")).counts == {"completed": 1}
        assert await reminder.result() == f"order {job.payload['order_id']}: reminded"
