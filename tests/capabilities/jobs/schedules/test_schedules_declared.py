"""What a program declares is stored when it starts, and does not replace what an operator has set."""

from datetime import timedelta
from typing import Any

import pytest

from kit.schedules import ScheduleWorld
from tickwright import Job, Tickwright
from tickwright.app.declarations import Declarations
from tickwright.capabilities.jobs.schedules.declared import store_declared, store_file
from tickwright.capabilities.jobs.schedules.definition import ScheduleChange
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller, Role

OPERATOR = Caller("me", Role.OPERATOR)


def program(**times: Any) -> Declarations:
    """Return a program with one periodic job."""
    declared = Declarations()

    async def tidy(_: Job) -> None:
        """Do nothing."""

    declared.job("tidy", **times)(tidy)
    return declared


async def test_a_handler_with_times_has_a_schedule_of_its_name(schedules: ScheduleWorld) -> None:
    """Stored once, and edited when the program declares something else."""
    times = {"cron": "0 3 * * *", "timezone": "Europe/Kyiv", "overlap": "skip", "misfire": "none", "spread": "5m"}
    await store_declared(schedules.schedules, program(**times).registrations)
    shown = await schedules.schedules.get("tidy")
    assert (shown.task_type, shown.cron, shown.time_zone, shown.set_by) == ("tidy", "0 3 * * *", "Europe/Kyiv", "app")
    assert (shown.overlap, shown.misfire, shown.spread) == ("skip", "none", "5m")
    await store_declared(schedules.schedules, program(**times).registrations)
    assert (await schedules.schedules.get("tidy")).version == 1
    await store_declared(schedules.schedules, program(every="15m").registrations)
    changed = await schedules.schedules.get("tidy")
    assert (changed.cron, changed.every, changed.version) == (None, "15m", 2)


async def test_what_an_operator_sets_counts(schedules: ScheduleWorld) -> None:
    """Also after the next start of the program; a pause stays, too."""
    declared = program(every="15m")
    await store_declared(schedules.schedules, declared.registrations)
    await schedules.schedules.change("tidy", ScheduleChange(every="20m"), caller=OPERATOR)
    await schedules.schedules.switch("tidy", "pause", caller=OPERATOR)
    await store_declared(schedules.schedules, program(every="30m").registrations)
    shown = await schedules.schedules.get("tidy")
    assert (shown.every, shown.set_by, shown.state) == ("20m", "operator", "paused")


async def test_a_pause_of_what_a_program_declares_stays(schedules: ScheduleWorld) -> None:
    """A start does not enable it."""
    await store_declared(schedules.schedules, program(every="15m").registrations)
    await schedules.schedules.switch("tidy", "pause", caller=OPERATOR)
    await store_declared(schedules.schedules, program(every="15m").registrations)
    shown = await schedules.schedules.get("tidy")
    assert (shown.state, shown.set_by) == ("paused", "app")


async def test_a_file_counts_like_an_operator(schedules: ScheduleWorld) -> None:
    """An unchanged file changes nothing."""
    await store_declared(schedules.schedules, program(every="15m").registrations)
    tables = {"tidy": {"task_type": "tidy", "cron": "@daily", "payload": {"a": [1, 2.5]}}}
    for _ in range(2):
        await store_file(schedules.schedules, tables, "tickwright.toml")
    await store_declared(schedules.schedules, program(every="15m").registrations)
    shown = await schedules.schedules.get("tidy")
    assert (shown.cron, shown.set_by, shown.version) == ("@daily", "operator", 2)


async def test_several_schedules_make_jobs_of_one_type(schedules: ScheduleWorld) -> None:
    """Each with its own payload: of a handler, of a call of one, or of a name."""
    declared = Tickwright()

    @declared.job("tidy")
    async def tidy(_: Job, region: str) -> None:
        """Do nothing."""

    declared.periodic("tidy-eu", tidy, every="1h", payload={"region": "eu"})
    declared.periodic("tidy-us", "tidy", cron="@hourly", payload={"region": "us"}, first_at="2030-01-01T00:00:00Z")
    declared.periodic("tidy-uk", tidy.call(region="uk"), every="2h")
    await store_declared(schedules.schedules, declared.registrations)
    found = await schedules.schedules.page()
    assert [(one.name, one.task_type, one.every) for one in found.items] == [
        ("tidy-eu", "tidy", "1h"), ("tidy-uk", "tidy", "2h"), ("tidy-us", "tidy", None),
    ]  # fmt: skip
    assert bytes((await schedules.schedules.detail("tidy-uk")).payload) == b'{"region": "uk"}'


def test_a_periodic_handler_needs_no_arguments() -> None:
    """The jobs of its decorator have an empty payload; a schedule with a payload is declared apart."""
    declared = Tickwright()
    with pytest.raises(Rejected, match="missing required field `region`"):

        @declared.job("tidy", every="1h")
        async def tidy(_: Job, region: str) -> None: ...


@pytest.mark.parametrize(
    "times",
    [{"cron": "0 0 31 2 *"}, {"cron": "@daily", "every": "1d"}, {"every": timedelta(0)}, {"overlap": "skip"}],
)
def test_times_that_cannot_work_end_the_program(times: dict[str, Any]) -> None:
    """When it is imported, and not at night."""
    with pytest.raises(Rejected):
        program(**times)


def test_a_function_that_is_no_handler_has_no_schedule() -> None:
    """The schedule would make jobs that no worker runs."""
    with pytest.raises(Rejected, match="no handler of this app"):
        Declarations().periodic("x", print, every="1h")
