"""One plugin's part of the overview that fails: the others go on, and its last figures stay."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from kit.nodes import started
from tickwright.capabilities.operations.snapshots import Snapshots
from tickwright.domain.errors import Rejected
from tickwright.engine.session import WorkerSession
from tickwright.observe.metrics import Sample
from tickwright.plugin.overview import OverviewPart, OverviewParts, Rates, Reading, Shown
from tickwright.plugin.settings import Settings
from tickwright.process.watching import DatabaseReadings, Watch
from tickwright.store.pool import open_pool


class Good(OverviewPart):
    """A part that works."""

    fields: ClassVar = {"good": int}

    def show(self, read: Mapping[str, Any], rates: Rates) -> Shown:
        """Show a number."""
        return Shown({"good": 1})

    async def gauges(self, connection: Any) -> list[Sample]:
        """Read a number."""
        return [Sample("good", await connection.fetchval("SELECT 1"))]


class Bad(OverviewPart):
    """A part whose code fails from its second call on."""

    fields: ClassVar = {"bad": int}
    calls = 0

    def readings(self) -> Mapping[str, Reading]:
        """Return a reading with a mistake."""
        return {"bad": self.read}

    async def read(self, connection: Any) -> int:
        """Fail in the database."""
        return int(await connection.fetchval("SELECT nothing"))

    def show(self, read: Mapping[str, Any], rates: Rates) -> Shown:
        """Show a number, then fail."""
        self.calls += 1
        if self.calls > 1:
            raise KeyError("bad")
        return Shown({"bad": 1})

    async def gauges(self, connection: Any) -> list[Sample]:
        """Fail in the database."""
        self.calls += 1
        return [Sample("bad", await connection.fetchval("SELECT 1" if self.calls == 1 else "SELECT nothing"))]


class Strange(Good):
    """A part that shows what it does not declare."""

    fields: ClassVar = {"strange": int}


def test_what_a_part_showed_last_stays() -> None:
    """Until it has shown something, and where it shows what it does not declare, it is ``None``."""
    parts = OverviewParts([Bad(), Strange(), Good()])
    with capture_logs() as logs:
        shown = [parts.show({}, Rates()).fields for _ in range(4)]
    assert [(one["bad"], one["good"], one["strange"]) for one in shown] == [(1, 1, None)] * 4
    assert [entry["part"] for entry in logs] == ["Strange", "Bad"], "once, not every second"


def test_parts_of_two_plugins_may_be_classes_of_one_name() -> None:
    """Each shows its own figures."""
    namesake = type("Good", (Good,), {"fields": {"other": int}, "show": lambda *_: Shown({"other": 2})})
    shown = OverviewParts([Good(), namesake()]).show({}, Rates()).fields
    assert (shown["good"], shown["other"]) == (1, 2)


async def test_the_metrics_of_the_others_are_read(database_url: str) -> None:
    """A statement that fails ends neither the page nor the part's last values."""
    pool = await open_pool(database_url)
    try:
        readings = DatabaseReadings(pool, OverviewParts([Bad(), Good()]))
        for _ in range(2):
            await readings._read()
            assert {Sample("bad", 1), Sample("good", 1)} <= set(readings())
        assert Sample("tickwright_readings_ok", 1.0) in readings()
    finally:
        await pool.close()


async def test_a_source_of_metrics_that_fails_does_not_end_the_page(database_url: str) -> None:
    """It is named in the log, once for each kind of error; the other series are served."""

    def fails() -> list[Sample]:
        raise KeyError("bad")

    def undeclared() -> list[Sample]:
        return [Sample("undeclared_total", 1)]

    def no_number() -> list[Sample]:
        return [Sample("tickwright_session_held", "many")]  # type: ignore[arg-type]

    pool = await open_pool(database_url)
    try:
        async with started(pool, Settings(), "relay") as context:
            context.sources[:0] = [fails, undeclared, no_number]
            page = Watch(context, context.ports.get(WorkerSession)).page
            with capture_logs() as logs:
                texts = [(await page.render()).decode() for _ in range(2)]
    finally:
        await pool.close()
    assert all('tickwright_relay_messages_total{outcome="published"} 0.0' in text for text in texts)
    assert all("tickwright_readings_ok 1.0" in text for text in texts)
    failed = [entry["part"] for entry in logs if entry["event"] == "metrics.source_failed"]
    assert [name.rpartition(".")[2] for name in failed] == ["fails", "undeclared", "no_number"]


async def test_a_reading_that_fails_does_not_end_the_snapshots(database_url: str) -> None:
    """The snapshot has what the others show."""
    pool = await open_pool(database_url)
    snapshots = Snapshots(pool, OverviewParts([Bad(), Good()]), version="0")
    try:
        assert (await snapshots.latest()).good == 1
    finally:
        await snapshots.stop()
        await pool.close()


@pytest.mark.parametrize("name", ["at", "version", "changes", "series", "dead_letters"])
def test_a_field_of_the_overview_itself_is_refused(name: str) -> None:
    """It would replace the field of every overview."""
    part = type("Part", (OverviewPart,), {"fields": {name: int}})
    with pytest.raises(Rejected, match=f"use the name '{name}'"):
        OverviewParts([part()])
