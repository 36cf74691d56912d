"""Performing one attempt of a handler: its arguments, its result, its job and its resources are those of a worker."""

import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from kit.mutants import mutate
from tickwright import Fail, Job, JobChunk, Rejected, Retry, Snooze, Tickwright, resource
from tickwright.capabilities.jobs.model import Completed
from tickwright.testing import attempts, perform, perform_chunk, perform_sync, performing


@dataclass
class Money:
    """A value that JSON has no type for."""

    amount: Decimal
    currency: str


@pytest.fixture
def app() -> Tickwright:
    """A program with no handlers yet."""
    return Tickwright()


async def test_the_handler_gets_its_arguments_and_the_caller_its_result_through_json(app: Tickwright) -> None:
    """Both are new values of the annotated types, as after the way through a payload and a stored result."""
    seen: list[Any] = []

    @app.job("pay")
    async def pay(job: Job, money: Money, at: datetime, note: str = "none") -> Money:
        seen.extend([money, at, note, job.type, job.payload["money"]])
        return Money(money.amount * 2, money.currency)

    given = Money(Decimal("1.50"), "EUR")
    at = datetime(2026, 1, 2, tzinfo=UTC)
    assert await perform(pay, given, at=at) == Money(Decimal("3.00"), "EUR")
    assert seen == [given, at, "none", "pay", {"amount": "1.50", "currency": "EUR"}]
    assert seen[0] is not given


def test_a_synchronous_test_performs_synchronous_and_asynchronous_handlers(app: Tickwright) -> None:
    """A synchronous handler runs in a thread, as in a worker."""

    @app.job("where")
    def where(job: Job) -> bool:
        return threading.current_thread() is threading.main_thread()

    @app.job("where_async")
    async def where_async(job: Job) -> bool:
        return threading.current_thread() is threading.main_thread()

    assert perform_sync(where) is False
    assert perform_sync(where_async) is True


@pytest.mark.parametrize(
    ("call", "code"),
    [
        pytest.param(lambda remind: perform(remind, invoice_id="x"), "invalid_arguments", id="another type"),
        pytest.param(perform, "invalid_arguments", id="missing"),
        pytest.param(lambda remind: perform(remind, invoice_id=1, more=2), "invalid_arguments", id="unknown"),
        pytest.param(lambda remind: perform(remind, invoice_id=object()), "invalid_payload", id="not JSON"),
        pytest.param(lambda remind: perform(remind.options(priority=101), 1), "invalid_priority", id="an option"),
    ],
)
async def test_an_argument_that_could_not_be_scheduled_is_refused(
    app: Tickwright, call: Callable[[Any], Any], code: str
) -> None:
    """With the code that ``schedule`` has, before the handler runs."""

    @app.job("remind")
    async def remind(job: Job, invoice_id: int) -> None:
        raise AssertionError("it must not run")

    with pytest.raises(Rejected) as refused:
        await call(remind)
    assert refused.value.code == code


async def test_a_result_that_could_not_be_stored_is_refused(app: Tickwright) -> None:
    """It would fail the job in production; so would a caller that awaits a value of another type."""

    @app.job("odd")
    async def odd(job: Job) -> Any:
        return object()

    @app.job("other")
    async def other(job: Job) -> int:
        return "x"  # type: ignore[return-value]

    @app.job("nan")
    async def nan(job: Job) -> list[float]:
        return [float("nan")]

    for unstorable in (odd, nan):
        with pytest.raises(Rejected, match="not JSON") as refused:
            await perform(unstorable)
        assert refused.value.code == "result_invalid"
    with pytest.raises(Rejected) as refused:
        await perform(other)
    assert refused.value.code == "result_type_differs"


@pytest.mark.parametrize("raised", [Fail("no"), Retry("later"), Snooze(timedelta(1)), KeyError("bug")], ids=repr)
async def test_what_the_handler_raises_is_raised(app: Tickwright, raised: Exception) -> None:
    """Outcomes and bugs alike, as the same object."""

    @app.job("raising")
    def raising(job: Job) -> None:
        raise raised

    with pytest.raises(type(raised)) as caught:
        await perform(raising)
    assert caught.value is raised


async def test_an_outcome_that_is_returned_stays_an_outcome(app: Tickwright) -> None:
    """``Completed`` is no value of the handler's type."""

    @app.job("outcome")
    async def outcome(job: Job) -> Completed:
        return Completed("1")

    assert await perform(outcome) == Completed("1")


async def test_the_job_of_the_attempt_can_be_chosen(app: Tickwright) -> None:
    """Its number, its fence, its time; progress is recorded, and a cancelled job sees that it is."""

    @app.job("look", max_attempts=3)
    async def look(job: Job) -> list[Any]:
        await job.progress({"done": 1})
        held = await job.progress({"done": 2})
        facts = [job.id, job.attempt, job.max_attempts, job.fence, job.execute_at.year, job.cancelled, held]
        return [*facts, job.wait_cancelled(0)]

    plain = await perform(look)
    assert plain[:4] == [1, 1, 3, 1]
    assert plain[5:] == [False, True, False]
    chosen = performing(
        attempt=4, max_attempts=5, id=9, fence=7, execute_at=datetime(2001, 1, 1, tzinfo=UTC), cancelled=True
    )
    assert await chosen(look) == [9, 4, 5, 7, 2001, True, False, True]
    assert chosen.progress == [{"done": 1}, {"done": 2}]
    assert (await perform(look.options(max_attempts=8)))[2] == 8


NAIVE = datetime(2001, 1, 1, tzinfo=UTC).replace(tzinfo=None)


@pytest.mark.parametrize("wrong", [{"attempt": 0}, {"attempt": 3, "max_attempts": 2}, {"execute_at": NAIVE}], ids=str)
def test_an_attempt_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    """No attempt has the number 0, none is behind the last one, and a time has a zone."""
    with pytest.raises(Rejected) as refused:
        performing(**wrong)
    assert refused.value.code == "invalid_attempt"


async def test_middleware_surrounds_the_attempt(app: Tickwright) -> None:
    """It sees the job and the result, and may change it."""

    @app.middleware
    async def loud(work: Any, run: Any) -> Any:
        return f"{work.type}: {await run()}"

    @app.job("greet")
    def greet(job: Job) -> str:
        return "hello"

    assert await perform(greet) == "greet: hello"


async def test_given_resources_take_the_place_of_the_lifespans(app: Tickwright) -> None:
    """No lifespan opens, and a handler needs only its own; without them the lifespans open for the call and close."""
    opened: list[str] = []

    @app.lifespan
    async def real() -> AsyncIterator[dict[str, Any]]:
        opened.append("opened")
        yield {"http": "real", "db": 1}
        opened.append("closed")

    @app.job("call")
    async def call(job: Job, path: str, http: str = resource()) -> str:
        return f"{http} {path}"

    @app.job("store")
    async def store(job: Job, db: int = resource()) -> int:
        return db

    assert await performing(resources={"http": "fake"})(call, path="/") == "fake /"
    assert opened == []
    assert await perform(call, path="/") == "real /"
    assert await perform(store) == 1
    assert opened == ["opened", "closed"] * 2
    assert await performing(resources={"http": "fake"})(call, path="/") == "fake /"


async def test_a_missing_resource_is_named(app: Tickwright) -> None:
    """With the parameter, and with what there is."""

    @app.job("call")
    async def call(job: Job, http: str = resource()) -> str:
        return http

    for attempt in (perform, performing(resources={"db": 1})):
        with pytest.raises(Rejected, match="no lifespan yields 'http'") as refused:
            await attempt(call)
        assert refused.value.code == "resource_missing"


async def test_a_chunk_is_performed_with_an_outcome_for_each_value(app: Tickwright) -> None:
    """The handler gets all of them at once, and waits for no more; ``perform`` makes a chunk of one."""
    sizes: list[int] = []

    @app.job("index", batch=100, within="1m")
    async def index(chunk: JobChunk[int]) -> None:
        sizes.append(len(chunk))
        for item in chunk:
            if item.value < 0:
                item.fail("negative")
            elif item.value:
                item.complete(item.value * 2)

    doubled, nothing, failed = await perform_chunk(index, [4, 0, -1])
    assert (doubled, nothing) == (8, None)
    assert isinstance(failed, Fail)
    assert await perform(index, 1) == 2
    with pytest.raises(Fail, match="negative"):
        await perform(index, -1)
    with pytest.raises(Rejected, match="arguments"):
        await perform(index, "x")  # type: ignore[arg-type]
    assert sizes == [3, 1, 1]


async def test_the_suite_notices_a_result_that_skips_json(app: Tickwright, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the handler's own object as the result, what could not be stored would pass."""
    mutate(monkeypatch, attempts._as_read, "if result is None or", "if True or result is None or")
    with pytest.raises(pytest.fail.Exception):
        await test_a_result_that_could_not_be_stored_is_refused(app)


async def test_steps_of_earlier_attempts_are_given_and_new_ones_are_returned(app: Tickwright) -> None:
    """A test presets what is done; results take the way through JSON, in every kind of handler and connection."""
    calls: list[str] = []

    async def charge(amount: Decimal) -> Money:
        calls.append("charge")
        return Money(amount, "EUR")

    async def mail(_connection: object, to: str) -> str:
        calls.append(to)
        return to

    @app.job("pay")
    async def pay(job: Job, amount: Decimal) -> Money:
        await job.step_in(object(), "mail", mail, object(), "ann")
        return await job.step("charge", charge, amount)

    @app.job("pay.sync")
    def pay_sync(job: Job) -> str:
        assert job.progress_sync({"done": 1})
        return job.step_sync("name", lambda: "x") + job.step_in_sync(object(), "other", lambda: "y")

    first = performing()
    assert await first(pay, Decimal(1)) == Money(Decimal(1), "EUR")
    assert first.steps == {"mail": "ann", "charge": {"amount": "1", "currency": "EUR"}}
    second = performing(attempt=2, steps=first.steps)
    assert await second(pay, Decimal(2)) == Money(Decimal(1), "EUR")
    assert calls == ["ann", "charge"]
    third = performing()
    assert await third(pay_sync) == "xy"
    assert third.progress == [{"done": 1}]


async def test_a_refused_step_reaches_the_test(app: Tickwright) -> None:
    """With the code that the job would fail with."""

    @app.job("pay")
    async def pay(job: Job) -> None:
        await job.step("twice", str)
        await job.step("twice", str)

    with pytest.raises(Rejected) as refused:
        await perform(pay)
    assert refused.value.code == "step_repeated"
