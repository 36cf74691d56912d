"""Accounts as the dashboard edits them: listed by lag, searched by text, changed in part, and previewed."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from kit.api import RunningApi, running_api
from kit.polling import Ground
from tickwright.capabilities.polling.trackers import accounts

MINUTE = timedelta(minutes=1)
JUDGED = """
INSERT INTO tickwright.account_lags (account_no, interval_minutes, due_at, polls, fresh, lag, stale_since)
SELECT account_no, 120, now(), 10, 9, $2, CASE WHEN $2::float8 > 1.1 THEN now() END
  FROM tickwright.polling_schedule_config WHERE account_id = $1
"""
SLICE = """
INSERT INTO tickwright.account_freshness (account_no, minutes, from_at, keep_until, polls, fresh, lag)
SELECT account_no, $2, date_bin(make_interval(mins => $2), now() - make_interval(mins => $3), 'epoch'),
       now() + interval '1 day', $4, $5, 1.5
  FROM tickwright.polling_schedule_config WHERE account_id = $1
"""


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API with the partner ``dhl``, which allows 2 calls a second, and ``ups``, which has no limit."""
    async with running_api(database_url) as running:
        await Ground(running.pool).partner(settings='{"rate": "2/s", "per_minute": 60}')
        await Ground(running.pool).partner("ups")
        yield running


@pytest.fixture
def ground(api: RunningApi) -> Ground:
    """The API's database, for writes by hand."""
    return Ground(api.pool)


async def pages(api: RunningApi, query: str) -> list[str]:
    """Return the ids of every account of a listing, page by page."""
    found: list[str] = []
    cursor = ""
    while True:
        page = (await api.viewer.get(f"/v1/accounts?limit=2&{query}{cursor}")).json
        found += [item["account_id"] for item in page["items"]]
        if not page["next"]:
            return found
        cursor = f"&cursor={page['next']}"


async def test_the_worst_lag_comes_first_and_no_account_is_left_out(api: RunningApi) -> None:
    """By lag, then by id; accounts that are not judged yet come last."""
    for name, lag in {"a": 1.0, "b": 3.5, "c": None, "d": 1.0, "e": 0.5, "f": None}.items():
        await api.admin.send("PUT", f"/v1/accounts/{name}", {})
        if lag is not None:
            await api.pool.execute(JUDGED, name, lag)
    assert await pages(api, "sort=lag") == ["b", "a", "d", "e", "c", "f"]
    assert await pages(api, "") == ["a", "b", "c", "d", "e", "f"]
    worst = (await api.viewer.get("/v1/accounts?sort=lag&limit=1")).json
    assert worst["items"][0]["stale_since"] is not None
    (await api.viewer.get(f"/v1/accounts?cursor={worst['next']}")).says(400, "invalid_cursor")


async def test_a_text_is_found_anywhere_in_an_account_id(api: RunningApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any case, wildcards of LIKE included; a page reads a bounded number, and the next one goes on."""
    names = ["acme-1", "acme_2", "b%c", "Zacme", "x1", "x2", "x3"]
    for name in names:
        await api.pool.execute("SELECT tickwright.account_number($1)", name)
    for query, wanted in {"ACME": {"acme-1", "acme_2", "Zacme"}, "%25": {"b%c"}, "_": {"acme_2"}, "y": set()}.items():
        assert set(await pages(api, f"text={query}")) == wanted
        assert set(await pages(api, f"sort=lag&text={query}")) == wanted
    monkeypatch.setattr(accounts, "ACCOUNTS_READ_MAX", 2)
    first = (await api.viewer.get("/v1/accounts?text=x3")).json
    assert first["items"] == []
    assert await pages(api, "text=x3") == ["x3"]


async def test_a_change_sets_what_is_given_and_nothing_else(api: RunningApi) -> None:
    """Two people who edit different fields do not overwrite each other; the audit trail has the change."""
    await api.admin.send("PUT", "/v1/accounts/acme", {"polling_interval_minutes": 30, "polls_per_slice_max": 10})
    changes: list[dict[str, Any]] = [
        {"polling_interval_minutes": 60}, {"max_age_days": 9}, {"freshness_objective": 0.9}, {},
    ]  # fmt: skip
    answers = await asyncio.gather(*(api.admin.send("PATCH", "/v1/accounts/acme", one) for one in changes))
    assert {answer.status for answer in answers} == {200}
    found = (await api.viewer.get("/v1/accounts/acme")).json
    assert (found["polling_interval_minutes"], found["max_age_days"], found["freshness_objective"]) == (60, 9, 0.9)
    assert found["polls_per_slice_max"] == 10
    ended = await api.admin.send("PATCH", "/v1/accounts/acme", {"polls_per_slice_max": None})
    assert ended.json["polls_per_slice_max"] is None
    [line, *_] = (await api.viewer.get("/v1/audit?action=accounts.change")).json["items"]
    assert (line["before"]["polls_per_slice_max"], line["after"]["polls_per_slice_max"]) == (10, None)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"polling_interval_minutes": 0}, 422, "invalid_value"),
        ({"polling_interval_minutes": None}, 422, "invalid_value"),
        ({"freshness_objective": 1}, 422, "invalid_value"),
        ({"account_id": "x"}, 400, "unknown_field"),
    ],
)
async def test_a_wrong_change_changes_nothing(api: RunningApi, body: Any, status: int, code: str) -> None:
    """Each mistake has its own code; an unknown account is not created."""
    await api.admin.send("PUT", "/v1/accounts/acme", {})
    (await api.admin.send("PATCH", "/v1/accounts/acme", body)).says(status, code)
    (await api.admin.send("PATCH", "/v1/accounts/nobody", {})).says(404, "account_not_found")
    assert (await api.viewer.get("/v1/audit?action=accounts.change")).json["items"] == []


async def test_a_partners_settings_are_merged_and_checked_whole(api: RunningApi) -> None:
    """A given value replaces, null removes, a table is merged; settings that do not fit together are refused."""
    (await api.admin.send("PATCH", "/v1/partners/dhl", {"rate": "nonsense"})).says(422, "invalid_partner")
    (await api.admin.send("PATCH", "/v1/partners/nobody", {})).says(404, "partner_not_found")
    body = {"per_minute": None, "concurrency": 3, "breaker": {"open": "9s"}}
    done = await api.admin.send("PATCH", "/v1/partners/dhl", body)
    assert done.json["settings"] == {"rate": "2/s", "concurrency": 3, "breaker": {"open": "9s"}}
    done = await api.admin.send("PATCH", "/v1/partners/dhl", {"breaker": {"failures": 4}})
    assert done.json["settings"]["breaker"] == {"open": "9s", "failures": 4}
    (await api.admin.send("PATCH", "/v1/partners/dhl", {"breaker": {"open": "6m"}})).says(422, "invalid_partner")
    lines = (await api.viewer.get("/v1/audit?action=partners.change")).json["items"]
    assert [line["subject"] for line in lines] == ["partner:dhl"] * 2


async def test_burn_rates_are_those_of_the_slices_and_days(api: RunningApi) -> None:
    """The hour counts its own slices, the three days what is folded, too; the series shows both."""
    await api.admin.send("PUT", "/v1/accounts/acme", {"freshness_objective": 0.9})
    assert (await api.viewer.get("/v1/accounts/acme")).json["freshness"]["burn"] == []
    await api.pool.execute(JUDGED, "acme", 1.0)
    for minutes, ago, polls, fresh in ((5, 10, 100, 50), (5, 120, 100, 100), (1440, 2880, 800, 800)):
        await api.pool.execute(SLICE, "acme", minutes, ago, polls, fresh)
    hour, six, days = (await api.viewer.get("/v1/accounts/acme")).json["freshness"]["burn"]
    assert [(one["window"], one["polls"], one["fresh"]) for one in (hour, six, days)] == [
        ("1h", 100, 50), ("6h", 200, 150), ("3d", 1000, 950),
    ]  # fmt: skip
    assert [one["rate"] for one in (hour, six, days)] == pytest.approx([5.0, 2.5, 0.5])
    assert six["short_rate"] == pytest.approx(5.0)
    series = (await api.viewer.get("/v1/accounts/acme/freshness?hours=72")).json
    assert [(one["minutes"], one["polls"]) for one in series["slices"]] == [(1440, 800), (5, 100), (5, 100)]
    assert len((await api.viewer.get("/v1/accounts/acme/freshness?hours=1")).json["slices"]) == 1
    (await api.viewer.get("/v1/accounts/nobody/freshness")).says(404, "account_not_found")


async def test_the_list_has_the_freshness_of_each_account(api: RunningApi) -> None:
    """Budget and burn rate are those of the detail; an account that is not judged yet has none."""
    for name in ("acme", "fresh"):
        await api.admin.send("PUT", f"/v1/accounts/{name}", {"freshness_objective": 0.9})
    await api.pool.execute(JUDGED, "acme", 1.0)
    for minutes, ago, polls, fresh in ((5, 10, 100, 50), (5, 120, 100, 100), (1440, 2880, 800, 800)):
        await api.pool.execute(SLICE, "acme", minutes, ago, polls, fresh)
    detail = (await api.viewer.get("/v1/accounts/acme")).json["freshness"]
    for sort in ("id", "lag"):
        acme, unjudged = (await api.viewer.get(f"/v1/accounts?sort={sort}")).json["items"]
        assert acme["error_budget_left"] == pytest.approx(detail["error_budget_left"]) == pytest.approx(0.5)
        assert acme["burn_rate"] == pytest.approx(detail["burn"][0]["rate"]) == pytest.approx(5.0)
        assert acme["recent_share"] == detail["recent"]["share"]
        assert [unjudged[name] for name in ("recent_share", "error_budget_left", "burn_rate")] == [None] * 3


async def filled(ground: Ground) -> int:
    """Place 1,200 trackers of ``acme`` on a wheel of two hours, two thirds of them at dhl, and select each slot."""
    slot = await ground.wheel(120)
    await ground.pool.execute(
        """INSERT INTO tickwright.trackers
                  (id, created_at, tracking_until, account_no, place, partner_no, status, external_id)
           SELECT nextval('tickwright.tracker_ids'), now(), now() + interval '9 days',
                  tickwright.account_number('acme'), n % 7200,
                  tickwright.partner_number(CASE WHEN n % 3 < 2 THEN 'dhl' ELSE 'ups' END), 'x', 'X' || n
             FROM generate_series(1, 1200) AS n"""
    )
    for n in range(120):
        due = await ground.turn(slot + n, 120 - n)
        await ground.slice(slot + n, due, selected=60)
        await ground.slice(slot + n, due, partner="ups", selected=4)
    return slot


async def test_a_preview_has_the_load_before_and_after_and_changes_nothing(api: RunningApi, ground: Ground) -> None:
    """Of the account, per partner against its rate, of all, and at the peak."""
    await filled(ground)
    before = await api.pool.fetchval("SELECT row_to_json(c)::text FROM tickwright.polling_schedule_config c")
    answer = await api.operator.post("/v1/accounts/acme/preview", {"polling_interval_minutes": 10})
    said = answer.json
    assert (said["trackers"], said["trackers_estimated"]) == (1200, False)
    assert said["now"]["polls_per_s"] == pytest.approx(1200 / 7200)
    assert said["then"]["polls_per_s"] == pytest.approx(1200 / 600)
    dhl, ups = said["partners"]
    assert (dhl["partner"], dhl["trackers"], dhl["rate_per_s"]) == ("dhl", 800, 1.0)
    assert dhl["all_now"] == pytest.approx(1.0)
    assert dhl["all_then"] == pytest.approx(1.0 - 800 / 7200 + 800 / 600)
    assert (dhl["over"], ups["over"], ups["rate_per_s"], ups["used_then"]) == (True, False, None, None)
    assert said["all_now"]["polls_per_s"] == pytest.approx(64 / 60)
    assert said["all_now"]["slice_peak"] == 5 * 64
    assert said["all_then"]["slice_peak"] == round(5 * 64 + (2 - 1 / 6) * 300)
    after = await api.pool.fetchval("SELECT row_to_json(c)::text FROM tickwright.polling_schedule_config c")
    assert after == before
    assert (await api.viewer.get("/v1/audit?subject=account:acme")).json["items"] == []


async def test_a_preview_of_a_cap_says_what_it_defers(api: RunningApi, ground: Ground) -> None:
    """25 polls in five minutes are half of those that are due; a setting that is not given stays as it is."""
    await filled(ground)
    said = (await api.operator.post("/v1/accounts/acme/preview", {"polls_per_slice_max": 25})).json
    assert said["then"] == {
        "polling_interval_minutes": 120, "polls_per_slice_max": 25, "polls_per_s": pytest.approx(25 / 300),
        "deferred_share": pytest.approx(0.5),
    }  # fmt: skip
    assert (await api.operator.post("/v1/accounts/acme/preview", {})).json["then"] == said["now"]
    (await api.operator.post("/v1/accounts/nobody/preview", {})).says(404, "account_not_found")


async def test_an_account_with_many_trackers_is_sampled(
    api: RunningApi, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the bound a sample says about how many; it reads so many pages, whatever the table has."""
    await filled(ground)
    await api.pool.execute("ANALYZE tickwright.trackers")
    monkeypatch.setattr(accounts, "COUNTED_MAX", 100)
    said = (await api.operator.post("/v1/accounts/acme/preview", {})).json
    assert (said["trackers"], said["trackers_estimated"]) == (1200, True), "all pages are in the sample"


async def test_an_account_without_trackers_has_no_load(api: RunningApi) -> None:
    """There is no division by zero."""
    await api.admin.send("PUT", "/v1/accounts/acme", {})
    said = (await api.operator.post("/v1/accounts/acme/preview", {"polling_interval_minutes": 1})).json
    assert (said["then"]["polls_per_s"], said["all_then"]["slice_peak"], said["partners"]) == (0.0, 0, [])


@pytest.mark.parametrize("letter", ["\u0457", "\U0001f69a", "\x01"])
async def test_a_listing_goes_on_after_the_longest_name_that_sql_can_write(database_url: str, letter: str) -> None:
    """A cursor holds the last name of its page, however long it is as text."""
    async with running_api(database_url) as api:
        names = [letter * 199 + last for last in "ab"]
        await api.pool.execute(
            "INSERT INTO tickwright.polling_schedule_config (account_id) SELECT unnest($1::text[])", names
        )
        first = (await api.viewer.get("/v1/accounts?limit=1")).json
        second = await api.viewer.get(f"/v1/accounts?limit=1&cursor={first['next']}")
    assert [one["account_id"] for page in (first, second.json) for one in page["items"]] == names
