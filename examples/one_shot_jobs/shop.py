"""An order and its reminder in one transaction; a worker in the same program runs the reminder."""

import asyncio
from typing import Any

from tickwright import Job, JobHandle, Tickwright

app = Tickwright()


@app.job("order.remind", timeout="5s", retry={"base": "1s", "cap": "1m"})
async def remind(job: Job, order_id: int) -> str:
    """Remind the customer; `job.id` is the same on every attempt, so a second mail can be recognised."""
    print(f"reminding of order {order_id} (job {job.id}, attempt {job.attempt})")
    return f"order {order_id}: reminded"


async def take_order(connection: Any, customer: str) -> JobHandle[str]:
    """Store the order and schedule its reminder, in the caller's transaction."""
    order_id: int = await connection.fetchval("INSERT INTO shop_orders (customer) VALUES ($1) RETURNING id", customer)
    reminder = remind.options(delay="2s", key=f"remind-{order_id}", connection=connection)
    return await reminder.schedule(order_id)


class PaymentError(Exception):
    """The customer could not pay."""


def pay(customer: str) -> None:
    """Fail, as payments do."""
    raise PaymentError(f"{customer} could not pay")


async def main() -> None:
    """Take an order, lose another one to a rollback, and wait for the reminder."""
    async with app:
        worker = asyncio.create_task(app.run_worker())
        await app.pool.execute(
            "CREATE TABLE IF NOT EXISTS shop_orders (id bigint GENERATED ALWAYS AS IDENTITY, customer text)"
        )
        async with app.pool.acquire() as connection:
            async with connection.transaction():
                reminder = await take_order(connection, "ann")
            try:
                async with connection.transaction():
                    await take_order(connection, "bob")
                    pay("bob")
            except PaymentError as error:
                print(f"rolled back: {error}")  # the order and its reminder never were
        print(await reminder.result(timeout="1m"))
        worker.cancel()
        await asyncio.wait([worker])
    print("done")


if __name__ == "__main__":
    asyncio.run(main())
