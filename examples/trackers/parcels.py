"""An order and the tracker of its parcel in one transaction; a courier that is polled, and one that calls by itself."""

import asyncio
from datetime import UTC, datetime
from typing import Any

from tickwright import Answer, Poll, ScanEvent, Tickwright

app = Tickwright()


@app.partner("swift", rate="50/s", concurrency=20, timeout="5s")
async def swift(poll: Poll) -> Answer:
    """Ask the courier for one parcel; here it always answers the same."""
    scanned = ScanEvent(datetime.now(UTC), f"{poll.external_id} left the depot")
    return Answer("in_transit", events=(scanned,))


async def ship(connection: Any, parcel: str) -> int:
    """Store the parcel and register its tracker, in the caller's transaction."""
    await connection.execute("INSERT INTO parcels (number) VALUES ($1) ON CONFLICT DO NOTHING", parcel)
    tracked = await app.track("shop-7", "swift", parcel, connection=connection)
    return tracked.id


async def main() -> None:
    """Ship a parcel, lose another one to a rollback, and apply a status that the courier reports by itself."""
    async with app:
        await app.pool.execute("CREATE TABLE IF NOT EXISTS parcels (number text PRIMARY KEY)")
        async with app.pool.acquire() as connection:
            async with connection.transaction():
                tracker = await ship(connection, "P1")
            transaction = connection.transaction()
            await transaction.start()
            lost = await ship(connection, "P2")
            await transaction.rollback()  # the parcel and its tracker never were
        print(f"tracker {tracker}: {(await app.trackers.explain(tracker)).summary}")
        for status in ("out_for_delivery", "Delivered"):
            told = await app.trackers.event(tracker, status, at=datetime.now(UTC))
            print(f"{status}: {told.outcome}, ended: {told.ended}")
        print((await app.trackers.explain(tracker)).summary)
    assert lost != tracker
    print("done")


if __name__ == "__main__":
    asyncio.run(main())
