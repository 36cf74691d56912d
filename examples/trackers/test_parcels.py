"""Tests of the parcels: the courier alone, and a tracker that is there if its parcel is."""

from datetime import UTC, datetime

import parcels

from tickwright.testing import OpenApp, make_poll


async def test_the_courier_tells_where_a_parcel_is() -> None:
    """The function alone: a poll is a value."""
    answer = await parcels.swift(make_poll("AWB1"))
    assert answer.status == "in_transit"
    assert answer.events[0].text == "AWB1 left the depot"


async def test_a_parcel_has_a_tracker_until_it_is_delivered(tickwright_app: OpenApp) -> None:
    """What a rolled back transaction has shipped has none."""
    async with tickwright_app(parcels.app) as app:
        await app.pool.execute("CREATE TABLE parcels (number text PRIMARY KEY)")
        async with app.pool.acquire() as connection:
            async with connection.transaction():
                tracker = await parcels.ship(connection, "P1")
            transaction = connection.transaction()
            await transaction.start()
            await parcels.ship(connection, "P2")
            await transaction.rollback()
        assert await app.pool.fetchval("SELECT array_agg(number) FROM parcels") == ["P1"]
        told = await app.trackers.event(tracker, "Delivered", at=datetime.now(UTC))
        assert (told.outcome, told.ended) == ("applied", True)
