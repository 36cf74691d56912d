"""A real Prometheus for tests: on a free port, with its own folder, scraping every second."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from kit.ports import free_port
from kit.processes import kill_group, missing, spawn
from kit.waiting import eventually
from tickwright.process.installation import metric_specs

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus/tickwright.rules.yml"


def promtool(*arguments: str) -> tuple[int, str]:
    """Run Prometheus' own checker; return its exit code and its output."""
    if shutil.which("promtool") is None:
        missing("promtool (prometheus)")
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """Return ``data`` of an answer of its API; its errors are in the message."""
        try:
            with urlopen(f"{self.url}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as answer:
                return json.load(answer)["data"]
        except URLError as error:
            detail = error.read().decode() if hasattr(error, "read") else ""
            raise AssertionError(f"{parameters}: {error} {detail}") from error

    def query(self, expression: str) -> list[Mapping[str, Any]]:
        """Return the present series of an expression."""
        found: list[Mapping[str, Any]] = self.ask("query", query=expression)["result"]
        return found

    def names(self) -> set[str]:
        """Return the names of all scraped metrics, in the contract's form."""
        found = {re.sub(r"_(bucket|sum|count)$", "", name) for name in self.ask("label/__name__/values")}
        return {name for name in found if name.startswith("tickwright_")}

    def firing(self) -> set[str]:
        """Return the names of the firing alerts."""
        return {one["labels"]["alertname"] for one in self.ask("alerts")["alerts"] if one["state"] == "firing"}


@contextmanager
def running_prometheus(folder: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """Run Prometheus with Tickwright's rules, whose alerts fire after a second instead of minutes."""
    program = shutil.which("prometheus") or missing("prometheus")
    (folder / "tickwright.rules.yml").write_text(re.sub(r"\bfor: \d+[smh]", "for: 1s", RULES.read_text()))
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["tickwright.rules.yml"],
        "scrape_configs": [{"job_name": "tickwright", "static_configs": [{"targets": list(targets)}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    at = f"127.0.0.1:{free_port()}"
    arguments = [
        program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={at}", "--log.level=warn",
    ]  # fmt: skip
    child = spawn(arguments, folder / "prometheus.log")
    server = Prometheus(f"http://{at}")

    def ready() -> bool:
        assert child.poll() is None, (folder / "prometheus.log").read_text()
        try:
            with urlopen(f"{server.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except URLError:
            return False

    try:
        eventually(ready, 30, what="Prometheus is ready")
        yield server
    finally:
        kill_group(child)


# The metrics of every plugin, as a process has them.

METRICS = tuple(metric_specs())
