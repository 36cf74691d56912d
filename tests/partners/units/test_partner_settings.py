"""Settings of a partner, and the meaning of its HTTP answers."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tickwright.capabilities.polling.consumer.courier import EVENTS_MAX, Answer, ScanEvent
from tickwright.capabilities.polling.consumer.http_courier import HttpCourier, HttpSchema, answer_of, read_http
from tickwright.domain.addresses import AllowList
from tickwright.domain.errors import Rejected
from tickwright.partners.model import step_of
from tickwright.partners.outcomes import ANSWERED, Failed, Outcome, Throttled, outcome_of
from tickwright.partners.settings import check_settings
from tickwright.process.configfile import load_config

WRONG = """
[partners.acme]
rate = "fast"
concurrency = 0
quiet = ["22:00-06:00 Europe/Nowhere"]
breaker = { failures = 0, opens = "5s", open = "1h", open_max = "1m" }
timout = "5s"
http = { url = "https://{external_id}.example/", headers = { Host = "x" } }
"""


def test_every_error_of_a_partner_is_named_at_once_with_its_remedy(tmp_path: Path) -> None:
    """No part of a wrong configuration is applied."""
    path = tmp_path / "tickwright.toml"
    path.write_text(WRONG, encoding="utf-8")
    with pytest.raises(Rejected) as caught:
        load_config(path)
    said = caught.value.message
    for line in (
        'partners.acme.rate: write a rate with its unit, such as "50/s"',
        "partners.acme.concurrency: a whole number from 1",
        "partners.acme.quiet: there is no time zone 'Europe/Nowhere'",
        "partners.acme.breaker.failures: a whole number from 1",
        "partners.acme.breaker.opens: unknown key; did you mean open",
        "partners.acme.breaker: open, 1:00:00, is above open_max",
        "partners.acme.timout: unknown key; did you mean timeout?",
        "partners.acme.http.url: {external_id} belongs in the path",
        "partners.acme.http.headers: the header 'Host' cannot be set",
        "partners.acme.http.status: missing",
    ):
        assert line in said


def test_the_tightest_budget_sets_the_pace() -> None:
    """Each of several budgets holds; a tenth of a second is left for late calls."""
    assert step_of(check_settings({})) == 0
    assert step_of(check_settings({"rate": "50/s"})) == pytest.approx(1.1 / 50)
    assert step_of(check_settings({"rate": "50/s", "per_minute": 600})) == pytest.approx(60.1 / 600)
    assert step_of(check_settings({"rate": "0.5/s"})) == pytest.approx(2.2)
    assert step_of(check_settings({"per_day": 24})) == pytest.approx(3600, rel=1e-4)


@pytest.mark.parametrize(
    ("status", "retry_after", "outcome"),
    [
        (200, None, ANSWERED),
        (404, None, ANSWERED),
        (422, "5", ANSWERED),
        (429, "5", Throttled(timedelta(seconds=5))),
        (503, "5", Throttled(timedelta(seconds=5))),
        (503, "Sat, 21 Nov 2026 12:00:10 GMT", Throttled(timedelta(seconds=10))),
        (429, "999999999", Throttled(timedelta(days=1))),
        (429, "0", Throttled(timedelta(seconds=1))),
        (503, "Sat, 21 Nov 2020 12:00:10 GMT", Throttled(timedelta(seconds=1))),
        (429, None, Failed("HTTP 429", throttled=True)),
        (429, "soon", Failed("HTTP 429", throttled=True)),
        (503, "soon", Failed("HTTP 503")),
        (500, "5", Failed("HTTP 500")),
        (401, None, Failed("HTTP 401")),
        (301, None, Failed("HTTP 301")),
    ],
)
def test_each_status_has_its_outcome_for_the_contract(status: int, retry_after: str | None, outcome: Outcome) -> None:
    """Only a status about the partner itself counts against it."""
    now = int(datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp())
    assert outcome_of(status, retry_after, now_unix_s=now) == outcome


TERMS = HttpSchema("https://x.example/{external_id}", {}, "s.0.code", at="s.0.t", statuses={"7": "Delivered"})


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (b'{"s": [{"code": 7, "t": 0}]}', Answer("Delivered", datetime(1970, 1, 1, tzinfo=UTC))),
        (b'{"s": [{"code": "x", "t": "2026-01-01T00:00:00"}]}', Answer("x", datetime(2026, 1, 1, tzinfo=UTC))),
        (b'{"s": [{"code": "x"}]}', Answer("x")),
    ],
)
def test_an_answer_is_read_by_its_paths(body: bytes, answer: Answer) -> None:
    """Statuses are mapped, or stay as they are."""
    assert answer_of(body, TERMS) == answer


@pytest.mark.parametrize("latest_first", [False, True])
def test_of_more_events_than_an_answer_has_the_latest_count(latest_first: bool) -> None:
    """Whatever the order of the list."""
    terms = HttpSchema("https://x.example/{external_id}", {}, "s", events="e")
    scans = [{"at": at, "text": "x"} for at in sorted(range(EVENTS_MAX + 5), reverse=latest_first)]
    answer = answer_of(json.dumps({"s": "moving", "e": scans}).encode(), terms)
    assert isinstance(answer, Answer)
    assert [event.at.timestamp() for event in answer.events] == list(range(5, EVENTS_MAX + 5))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"s": []}',
        b'{"s": [{"code": null}]}',
        b'{"s": [{"code": ""}]}',
        b'{"s": [{"code": true}]}',
        b'{"s": [{"code": "x", "t": "yesterday"}]}',
        b'{"s": [{"code": "x", "t": 1e300}]}',
        b'{"s": [{"code": "x", "t": 1e17}]}',
        b'{"s": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'"' + b"x" * 300_000 + b'"',
    ],
)
def test_an_answer_that_cannot_be_read_is_a_failed_call(body: bytes) -> None:
    """Never an invented status, never an exception."""
    assert isinstance(answer_of(body, TERMS), Failed)


def test_a_secret_comes_from_the_environment_and_is_named_if_missing() -> None:
    """The table never holds it."""
    table = {"url": "https://x.example/{external_id}", "status": "s", "headers": {"Authorization": "Bearer ${env:KEY}"}}
    problems: list[str] = []
    terms = read_http(table, problems, where="http", secrets=lambda _: "abc")
    assert terms is not None, problems
    assert terms.headers == {"authorization": "Bearer abc"}
    assert read_http(table, problems, where="http", secrets=lambda _: None) is None
    assert problems == ["http.headers: there is no variable KEY in the environment"]


def test_a_partner_at_an_address_that_must_not_be_reached_is_refused() -> None:
    """Polls have the guard of callbacks."""
    terms = HttpSchema("http://169.254.169.254/{external_id}", {}, "s")
    with pytest.raises(Rejected, match="not allowed"):
        HttpCourier(terms, allow=AllowList(), connections_max=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": ""},
        {"status": "x" * 101},
        {"status": "nul\0"},
        {"status": "half \ud800"},
        {"status": "x", "at": datetime(2026, 1, 1)},  # noqa: DTZ001  that is the error
        {"status": "x", "at": datetime(9999, 1, 1, tzinfo=UTC)},
        {"status": "x", "events": (ScanEvent(datetime(2026, 1, 1, tzinfo=UTC), "x" * 501),)},
        {"status": "x", "events": (ScanEvent(datetime(1, 1, 1, tzinfo=UTC), "x"),)},
        {"status": "x", "events": (ScanEvent(datetime(2026, 1, 1, tzinfo=UTC), "x"),) * 101},
    ],
)
def test_an_answer_that_could_not_be_written_is_refused_when_it_is_made(wrong: dict[str, Any]) -> None:
    """One bad answer must not block those that are written with it."""
    with pytest.raises(Rejected) as caught:
        Answer(**wrong)
    assert caught.value.code == "invalid_answer"


def test_an_answer_copies_its_events() -> None:
    """A list that the handler fills later does not change its answer."""
    events = [ScanEvent(datetime(2026, 1, 1, tzinfo=UTC), "picked up")]
    answer = Answer("moving", None, events)  # type: ignore[arg-type]
    events.append("raw")  # type: ignore[arg-type]
    assert answer.events == (events[0],)


@pytest.mark.parametrize(
    "values",
    [
        {"terminal": 1},
        {"terminal": None},
        {"terminal": "no"},
        {"status": 7},
        {"status": b"moving"},
        {"at": "yesterday"},
        {"events": [{"at": datetime(2026, 1, 1, tzinfo=UTC), "text": "raw"}]},
        {"events": [ScanEvent("yesterday", "x")]},  # type: ignore[arg-type]
        {"events": [ScanEvent(datetime(2026, 1, 1, tzinfo=UTC), 7)]},  # type: ignore[arg-type]
    ],
)
def test_an_answer_of_the_wrong_types_is_refused_when_it_is_made(values: dict[str, Any]) -> None:
    """So the poll fails with a reason and is retried, instead of being dropped as it is written."""
    with pytest.raises(Rejected) as caught:
        Answer(**{"status": "moving", **values})
    assert caught.value.code == "invalid_answer"
