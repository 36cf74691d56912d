"""Typed calls: a job is scheduled with its handler's arguments, and its result has the handler's return type."""

import asyncio
import dataclasses
import enum
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import asyncpg
import msgspec
import psycopg
import pydantic
import pytest

from kit.engine import job_row
from tickwright import (
    Fail,
    Job,
    JobCall,
    JobCancelled,
    JobFailed,
    JobFunction,
    JobHandle,
    Rejected,
    Scheduled,
    Tickwright,
    Unavailable,
)
from tickwright.capabilities.jobs.arguments import PayloadInvalid

DUE = datetime(2031, 5, 1, 9, tzinfo=UTC)


class Size(enum.Enum):
    """How large an order is."""

    SMALL = "s"
    LARGE = "l"


class Address(pydantic.BaseModel):
    """A pydantic model with a rule of its own."""

    city: str = pydantic.Field(min_length=2)
    since: datetime


@dataclasses.dataclass(frozen=True)
class Line:
    """A dataclass."""

    sku: str
    price: Decimal


class Parcel(msgspec.Struct, frozen=True):
    """A msgspec struct."""

    lines: list[Line]


app = Tickwright()


@app.job("add")
async def add(job: Job, a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@app.job("order.pack")
async def pack(  # noqa: PLR0917  one argument of each kind
    _job: Job, order: UUID, to: Address, parcel: Parcel, size: Size, at: datetime, also: list[Address] | None = None
) -> Parcel:
    """Pack an order."""
    return parcel


@app.job("shout")
def shout(job: Job, word: str, *, times: int) -> str:
    """Repeat a word."""
    return word.upper() * times


def program(url: str) -> SimpleNamespace:
    """An app with jobs that return, fail, and are cancelled."""
    own = Tickwright(url, metrics_bind="127.0.0.1:0")

    @own.job("add")
    async def add(_job: Job, a: int, b: int = 1) -> int:
        return a + b

    @own.job("move")
    async def move(_job: Job, to: Address) -> Address:
        return to

    @own.job("fail")
    async def fail(_job: Job) -> None:
        raise Fail("the card is blocked")

    @own.job("wait")
    async def wait(job: Job, steps: int) -> None:
        for step in range(steps):
            await job.progress({"step": step})
        await asyncio.Event().wait()

    @own.job("shout")
    def shout(_job: Job, word: str) -> str:
        return word.upper()

    return SimpleNamespace(app=own, add=add, move=move, fail=fail, wait=wait, shout=shout)


@asynccontextmanager
async def working(own: Tickwright) -> AsyncIterator[None]:
    """The app is open, with a worker in it."""
    async with own:
        worker = asyncio.create_task(own.run_worker(roles=["worker"]))
        try:
            yield
        finally:
            worker.cancel()
            await asyncio.wait([worker])


async def test_a_decorated_handler_is_still_its_function() -> None:
    """Tests of a handler call it as before."""
    assert await add(cast("Job", None), 2, b=3) == 5
    assert shout(cast("Job", None), "ho", times=2) == "HOHO"
    assert (add.__name__, add.__doc__, add.name) == ("add", "Add two numbers.", "add")
    assert isinstance(add, JobFunction)


def test_a_call_is_a_value_with_the_handlers_payload() -> None:
    """Defaults that are left out stay with the handler; options belong to the call."""
    call = add.options(delay="3d", key="k", priority=5, max_attempts=2, timeout="2s").call(1)
    assert isinstance(call, JobCall)
    assert (call.task_type, call.payload, call.returns) == ("add", '{"a":1}', int)
    assert (call.delay, call.key, call.priority) == (timedelta(days=3), "k", 5)
    assert (call.max_attempts, call.timeout) == (2, timedelta(seconds=2))
    assert call.digest is not None
    assert add.options(delay="3d").options(at=DUE).call(1).delay is None, "the later of two times counts"


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ((), {}, "missing a required argument: 'a'"),
        ((1,), {"a": 2}, "multiple values for argument 'a'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((), {"a": 1, "c": 2}, "unexpected keyword argument 'c'"),
        ((), {"a": "one"}, r"Expected `int`, got `str` - at `\$.a`"),
        ((), {"a": 1.5}, "Expected `int`, got `float`"),
        ((), {"a": None}, "Expected `int`, got `null`"),
    ],
)
def test_a_call_that_the_handler_could_not_read_is_refused(
    args: tuple[Any, ...], kwargs: dict[str, Any], reason: str
) -> None:
    """It is refused where it is made, with the argument's name, and not by a worker later."""
    with pytest.raises(Rejected, match=reason) as refused:
        add.call(*args, **kwargs)
    assert refused.value.code == "invalid_arguments"


def test_what_cannot_be_written_is_refused() -> None:
    """An object without a JSON form, and a model that its own rules refuse."""
    with pytest.raises(Rejected, match="no JSON form") as refused:
        add.call(cast("int", object()))
    assert refused.value.code == "invalid_payload"
    with pytest.raises(Rejected, match="at least 2 characters"):
        pack.call(uuid4(), cast("Address", {"city": "", "since": DUE}), Parcel([]), Size.SMALL, DUE)


def test_options_refuse_two_times_and_a_number_without_a_unit() -> None:
    """The rules are those of the string form."""
    with pytest.raises(Rejected, match="not both"):
        add.options(at=DUE, delay="1s")
    with pytest.raises(Rejected, match="no unit"):
        add.options(delay=cast("str", 5))
    with pytest.raises(Rejected, match="-100 to 100"):
        add.options(priority=1000).call(1)


def test_a_job_without_a_name_is_refused_where_it_is_declared() -> None:
    """``@app.job`` without parentheses would register nothing, silently."""
    with pytest.raises(Rejected, match=r'@app\.job\("invoice\.remind"\)') as refused:

        @Tickwright().job  # type: ignore[call-overload, untyped-decorator, unused-ignore]
        async def remind(job: Job) -> None:
            """Do nothing."""

    assert refused.value.code == "invalid_handler"


@pytest.mark.parametrize("strange", [[7], {"invoice_id": 7}])
async def test_what_is_no_call_and_no_mapping_is_refused(strange: Any) -> None:
    """A mapping instead of a list of mappings has names as its items."""
    app = Tickwright()

    @app.job("remind")
    async def remind(job: Job, invoice_id: int) -> None:
        """Do nothing."""

    with pytest.raises(Rejected, match="a call of the job, or a mapping") as refused:
        await remind.schedule_many(strange)
    assert refused.value.code == "invalid_arguments"


def test_any_json_value_is_an_object() -> None:
    """An argument that says only ``object`` takes what is there."""

    @Tickwright().job("any")
    async def take(_job: Job, value: object, values: dict[str, object]) -> object:
        return value, values

    call = take.call({"a": [1]}, {"b": "c"})
    assert take.handler.arguments.read(call.payload) == {"value": {"a": [1]}, "values": {"b": "c"}}


def test_an_argument_that_a_payload_leaves_out_has_the_handlers_default() -> None:
    """Also a default that is a list: the call fills it in, as Python does."""

    @Tickwright().job("send")
    async def send(_job: Job, to: str, tags: list[str] = ["new"], copies: int = 1) -> object:  # noqa: B006
        return to, tags, copies

    read = send.handler.arguments.read
    assert read('{"to": "a", "later": 1}') == {"to": "a"}
    assert read('{"to": "a", "copies": 2}') == {"to": "a", "copies": 2}
    for payload in ('{"tags": []}', '{"to": "a", "copies": "x"}'):
        with pytest.raises(PayloadInvalid):
            read(payload)


def test_arguments_of_users_types_come_back_equal() -> None:
    """UUID, datetime, enum, dataclass, struct and pydantic models, also nested."""
    there = {
        "order": uuid4(),
        "to": Address(city="Kyiv", since=DUE),
        "parcel": Parcel([Line("a1", Decimal("12.30"))]),
        "size": Size.LARGE,
        "at": DUE,
        "also": [Address(city="Lviv", since=DUE)],
    }
    call = pack.call(**cast("Any", there))
    assert pack.handler.arguments.read(call.payload) == there


async def test_a_typed_job_is_scheduled_alone_together_and_in_a_transaction(database_url: str) -> None:
    """Each way schedules the same job, and returns a handle."""
    one = program(database_url)
    async with one.app as own:
        alone = await one.add.options(at=DUE).schedule(a=7)
        several = await one.add.options(priority=3).schedule_many([one.add.call(1, b=2), {"a": 4}])
        connection = await asyncpg.connect(database_url)
        try:
            async with connection.transaction():
                inside = await one.add.options(connection=connection, key="k").schedule(5)
                with pytest.raises(Rejected, match="there is no job"):
                    await own.get(inside.id)  # not committed yet
            rows = [await job_row(connection, made.id) for made in (alone, *several, inside)]
        finally:
            await connection.close()
        again = await one.add.options(key="k").schedule(5)
        mixed = await own.schedule_many([one.add.call(1), own.new_job("shout", {"word": "a"})])
    assert all(isinstance(made, JobHandle) and made.created for made in (alone, *several, inside, *mixed))
    assert again == Scheduled(inside.id, created=False)
    assert [row["payload"] for row in rows] == ['{"a": 7}', '{"a": 1, "b": 2}', '{"a": 4}', '{"a": 5}']
    assert [row["priority"] for row in rows] == [0, 0, 3, 0], "a call has its own options"


async def test_a_result_has_the_handlers_type(database_url: str) -> None:
    """A number, a model, the result of a thread, and nothing."""
    one = program(database_url)
    async with working(one.app):
        number = await one.add.schedule(2, b=3)
        assert await number.result(timeout="60s") == 5
        moved = await one.move.schedule(Address(city="Kyiv", since=DUE))
        assert await moved.result(timeout="60s") == Address(city="Kyiv", since=DUE)
        assert await (await one.shout.schedule("ho")).result(timeout="60s") == "HO"
        assert await (await one.app.schedule("add", {"a": 1})).result(timeout="60s") == 2
        assert await number.result() == 5, "it stays readable"


async def test_a_result_that_never_comes_raises_what_the_job_ended_with(database_url: str) -> None:
    """A failed job, a cancelled one, and one that has not ended."""
    one = program(database_url)
    async with working(one.app):
        failing = await one.fail.schedule()
        with pytest.raises(JobFailed, match="the card is blocked") as failed:
            await failing.result(timeout="60s")
        assert (failed.value.code, failed.value.details["job_id"]) == ("job_failed", failing.id)
        waiting = await one.wait.schedule(3)
        steps = [value async for value in _first(waiting.progress(), "step", 2)]
        assert steps[-1] == {"step": 2}
        with pytest.raises(Unavailable) as late:
            await waiting.result(timeout="1ms")
        assert late.value.code == "result_timeout"
        await waiting.cancel()
        with pytest.raises(JobCancelled) as cancelled:
            await waiting.result(timeout="60s")
        assert cancelled.value.code == "job_cancelled"
        never = await one.wait.options(delay="1h").schedule(3)
        await never.cancel()
        with pytest.raises(JobCancelled, match=rf"^job {never.id} was cancelled$"):
            await never.result(timeout="60s")


async def _first(values: AsyncIterator[Any], field: str, last: int) -> AsyncIterator[Any]:
    async for value in values:
        yield value
        if value[field] == last:
            return


def test_a_synchronous_program_schedules_and_waits(database_url: str) -> None:
    """On its own connection, or inside ``with app:``, whose event loop runs in a thread."""
    one = program(database_url)
    with pytest.raises(Unavailable, match="with app"):
        one.add.schedule_sync(1)
    with one.app:
        with psycopg.connect(database_url) as connection:
            inside = one.add.options(connection=connection).schedule_sync(1)
            several = one.add.options(connection=connection).schedule_many_sync([one.add.call(5), {"a": 6}])
        alone = one.add.schedule_sync(2)
        with pytest.raises(Rejected, match="open already"):
            one.app.__enter__()
        with pytest.raises(Unavailable) as late:
            alone.result_sync(timeout="1ms")
        assert late.value.code == "result_timeout"
        ids = [made.id for made in (inside, *several, alone)]
        found = [one.app.run_sync(one.app.get(job_id)) for job_id in ids]
        assert [job.payload for job in found] == [{"a": 1}, {"a": 5}, {"a": 6}, {"a": 2}]
        assert one.app.schedule_sync("shout", {"word": "x"}).created
    with one.app, pytest.raises(Rejected) as unknown:
        one.app.run_sync(one.app.get(10**9))
    assert unknown.value.code == "job_not_found"
