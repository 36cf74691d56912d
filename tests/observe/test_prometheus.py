"""Rules and dashboard under a real Prometheus: they are sound, they fire, and they see a real run."""

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import asyncpg
import pytest
import yaml

from kit.cli import environment
from kit.forks import Child
from kit.ports import free_port
from kit.processes import kill_group, spawn
from kit.prometheus import DEPLOY, METRICS, RULES, Prometheus, promtool, running_prometheus
from kit.waiting import eventually

ROOT = Path(__file__).parents[2]
RULE_TESTS = sorted((DEPLOY / "prometheus/tests").glob("*.yml"))
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}
PROGRAM = ROOT / "tests/kit/trace_program.py"
NOT_OF_THIS_RUN = {
    "tickwright_fanout_messages_total",
    "tickwright_fanout_tasks_total",
    "tickwright_fanout_running_tasks",
    "tickwright_fanout_parked_tasks",
    "tickwright_fanout_slow_entities",
    "tickwright_fanout_slow_running_tasks",
    "tickwright_fanout_queued_tasks",
    "tickwright_fanout_listed_entities",
    "tickwright_fanout_module_held_back",
    "tickwright_report_parts_total",
    "tickwright_report_running_parts",
    "tickwright_report_stuck_calls",
    "tickwright_report_steps_total",
    "tickwright_report_running_steps",
    "tickwright_remote_results_total",
    "tickwright_remote_waiting_claims",
    "tickwright_batch_chunks_total",
    "tickwright_batch_running_chunks",
    "tickwright_polls_done_total",
    "tickwright_poll_news_total",
    "tickwright_polls_late_total",
    "tickwright_polls_superseded_total",
    "tickwright_poll_lost_answers_total",
    "tickwright_poll_answer_backlog",
    "tickwright_polls_held",
    "tickwright_poll_records_total",
    "tickwright_poll_records_over_total",
    "tickwright_poll_records_parked_total",
    "tickwright_poll_records_skipped_total",
    "tickwright_poll_partitions_held",
    "tickwright_poll_rebalances_total",
    "tickwright_partner_calls_total",
    "tickwright_partner_running_calls",
    "tickwright_partner_closed",
    "tickwright_poll_lag_records",
    "tickwright_poll_oldest_seconds",
    "tickwright_polls_fresh_ratio",
    "tickwright_account_lag_ratio",
}
"""What only consumers, or trackers and entities that are there, have."""


def slugs(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_rules_are_sound() -> None:
    """As Prometheus itself reads them."""
    code, said = promtool("check", "rules", str(RULES))
    assert code == 0, said


@pytest.mark.matrix
@pytest.mark.parametrize("file", RULE_TESTS, ids=lambda file: file.stem)
def test_the_rules_fire_when_they_should_and_only_then(file: Path) -> None:
    """Each case says which alerts fire at which instant, all of them."""
    code, said = promtool("test", "rules", str(file))
    assert code == 0, said


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    """An alert without one may be silent for ever."""
    cases = [case for file in RULE_TESTS for case in yaml.safe_load(file.read_text())["tests"]]
    fired = {
        name
        for case in cases
        for check in case.get("promql_expr_test", [])
        for sample in check["exp_samples"]
        for name in re.findall(r'alertname="(\w+)"', sample["labels"])
    }
    assert fired == ALERTS.keys()


def test_every_alert_says_what_to_do_and_where_that_is_explained() -> None:
    """Summary, advice, and a paragraph of the runbook that names it."""
    page = ROOT / "docs/operations.md"
    anchors, text = slugs(page), page.read_text()
    for name, rule in ALERTS.items():
        said = rule["annotations"]
        assert said.keys() == {"summary", "description", "runbook_url"}, name
        assert said["description"].endswith("."), name
        at, _, anchor = said["runbook_url"].partition("#")
        assert at == "https://github.com/tickwright/tickwright/blob/main/docs/operations.md", name
        assert anchor in anchors, name
        if anchor != "alerts":
            heading = next(line for line in re.findall(r"^### (.+)$", text, re.MULTILINE) if _slug(line) == anchor)
            paragraph = text.partition(f"\n### {heading}\n")[2].partition("\n#")[0]
            assert f"**{name.removeprefix('Tickwright')}**" in paragraph, name
        assert rule.get("labels", {}).get("severity") in {"critical", "warning", None}, name
    assert [name for name, rule in ALERTS.items() if "labels" not in rule] == ["TickwrightFiring"]


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@contextmanager
def run_of_three(url: str, folder: Path) -> Iterator[dict[str, tuple[str, Child]]]:
    """A worker with a program, a scheduler and a relay, each a process; by name, with the address of its metrics."""
    children: dict[str, tuple[str, Child]] = {}
    try:
        for name in ("worker", "scheduler", "relay"):
            at = f"127.0.0.1:{free_port()}"
            env = {**environment(DATABASE_URL=url, METRICS_BIND=at), "TICKWRIGHT_TEST_HOOK": "pg:hooks"}
            words = [str(PROGRAM)] if name == "worker" else ["-m", "tickwright", "run", name]
            children[name] = at, spawn([sys.executable, *words], folder / f"{name}.log", env)
        yield children
    finally:
        for _, child in children.values():
            kill_group(child)


async def some_work(url: str) -> None:
    """Jobs and messages as any program has them: one that is done, one that fails, some that wait."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "INSERT INTO tickwright.task_types (name, target) VALUES ('order.callback', 'python:none') "
            "ON CONFLICT DO NOTHING;"
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload) VALUES "
            "(now(), 'order.placed', '{\"order\": 1}'), (now(), 'order.placed', '{}'), "
            "(now() + interval '1 day', 'order.placed', '{}'), (now() - interval '1 minute', 'unknown.type', '{}');"
            "INSERT INTO tickwright.outbox (destination, payload) VALUES ('kafka:nowhere', '{}')"
        )
    finally:
        await connection.close()


def as_prometheus(expression: str) -> str:
    """Return a query of the dashboard as Grafana sends it."""
    text = expression.replace("$__rate_interval", "10s").replace("$instance", ".*").replace("$task_type", ".*")
    assert "$" not in text
    return text


def dashboard() -> list[str]:
    """Return every query of the dashboard."""
    board = json.loads((DEPLOY / "grafana/tickwright.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]


@pytest.mark.storm
def test_a_real_run_is_scraped_queried_and_raises_alerts(database_url: str, tmp_path: Path) -> None:
    """Everything of the contract that these roles have is there; every query answers; an alert fires, and clears."""
    asyncio.run(some_work(database_url))
    folder = tmp_path / "prometheus"
    folder.mkdir()
    wanted = {spec.name for spec in METRICS} - NOT_OF_THIS_RUN
    with contextlib.ExitStack() as stack:
        children = stack.enter_context(run_of_three(database_url, tmp_path))
        server = stack.enter_context(running_prometheus(folder, [at for at, _ in children.values()]))
        logs = [(tmp_path / f"{name}.log") for name in children]
        eventually(
            lambda: len(server.query('up{job="tickwright"} == 1')) == len(children),
            60,
            what=f"all are scraped: {[log.read_text()[-500:] for log in logs]}",
        )
        eventually(lambda: wanted <= server.names(), 60, what=f"{wanted - server.names()}")
        assert server.names() <= {spec.name for spec in METRICS}, "and nothing that is not in the contract"
        _dashboard_answers(server, wanted)
        eventually(lambda: not server.firing() & _DEAD_MAN, 60, what=f"all is well; {server.firing()}")
        assert "TickwrightFiring" in eventually(server.firing, 60, what="our own rule is passed on")
        kill_group(children["relay"][1])
        missed = {"TickwrightDown", "TickwrightNoRelay"}  # and a lease it happened to hold, until another takes it
        eventually(lambda: server.firing() & _DEAD_MAN == missed, 60, what="the relay is missed, and nothing else")
        at = children["relay"][0]
        env = environment(DATABASE_URL=database_url, METRICS_BIND=at)
        words = [sys.executable, "-m", "tickwright", "run", "relay"]
        children["relay"] = at, spawn(words, tmp_path / "relay.log", env)
        eventually(lambda: not server.firing() & _DEAD_MAN, 60, what="it is back")


_DEAD_MAN = {
    f"Tickwright{rule['alert'].removeprefix('Tickwright')}"
    for group in GROUPS
    if group["name"] == "tickwright-dead-man"
    for rule in group["rules"]
} - {"TickwrightCrashing", "TickwrightLeasesLost"}


def _dashboard_answers(server: Prometheus, wanted: set[str]) -> None:
    """Every query is understood, and those of metrics that are there have values."""
    for expression in dashboard():
        asked = as_prometheus(expression)
        server.query(asked)
        names = {re.sub(r"_(bucket|count)$", "", name) for name in re.findall(r"\btickwright_\w+", expression)}
        if names and names <= wanted:
            eventually(partial(server.query, asked), 30, what=asked)
