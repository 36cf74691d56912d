"""Run every bench and write ``docs/performance.md`` from what it measured; ``make bench`` calls it.

    python bench/run.py [--quick] [LABEL …]

With labels only those benches run again; the page is written from the newest report of each.

Raw reports go to ``bench/results/NAME.json``. Nothing is written by hand into the page.
"""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
RUNS: list[tuple[str, str, list[str]]] = [
    ("jobs", "jobs", []),
    ("lateness", "lateness", ["--jobs", "100000", "--span", "60s"]),
    ("lateness_at_once", "lateness", ["--jobs", "100000", "--span", "0s"]),
    ("pickup", "pickup", []),
    ("recovery", "recovery", []),
    ("obstacles", "obstacles", ["--seconds", "600"]),
    ("idle", "idle", []),
    ("callbacks", "callbacks", []),
    ("memory", "memory", []),
]
QUICK = {"jobs": ["--runs", "1"], "obstacles": ["--runs", "1", "--seconds", "15"], "idle": ["--seconds", "20"]}
HEAD = """# Performance

Written by `make bench`; every figure was measured on the machine named below, each section in one run. Client, workers
and PostgreSQL share its processors, so read the drains as shares of `limit_2p`: what pgbench gets out of a bare table
(HOT claim and DELETE in batches of 1,000, two clients) in the same run. The benches are `src/tickwright/bench/`.
"""


def main() -> int:
    """Run them all, one after the other."""
    quick, wanted = "--quick" in sys.argv[1:], {word for word in sys.argv[1:] if not word.startswith("-")}
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    for label, name, arguments in RUNS:
        if wanted and label not in wanted:
            continue
        extra = QUICK.get(name, []) if quick else []
        print(f"bench {name} {' '.join([*arguments, *extra])}", file=sys.stderr)
        command = [sys.executable, "-m", "tickwright", "bench", name, *arguments, *extra, "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        report = json.loads(done.stdout)
        (results / f"{label}.json").write_text(json.dumps(report, indent=1))
    newest = [(label, name, results / f"{label}.json") for label, name, _ in RUNS]
    PAGE.write_text(
        page([(label, name, json.loads(path.read_text())) for label, name, path in newest if path.exists()])
    )
    return 0


def page(reports: list[tuple[str, str, dict[str, Any]]]) -> str:
    """Return the page's text."""
    machine = reports[0][2]["machine"]
    settings = ", ".join(f"`{key}={value}`" for key, value in machine["postgresql"].items())
    parts = [
        HEAD,
        f"Machine: {described(machine)}. PostgreSQL: {settings}.\n",
    ]
    parts += [section(label, name, report) for label, name, report in reports]
    return "\n".join(parts)


def described(machine: dict[str, Any]) -> str:
    """Return the machine in words."""
    size = f"{machine['cpus']} × {machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB, {machine['system']}"
    return f"{size}, Python {machine['python']}, Tickwright {machine['tickwright']}"


def section(label: str, name: str, report: dict[str, Any]) -> str:
    """Return one bench's table."""
    bars = import_module(f"tickwright.bench.{name}").BARS
    parameters = ", ".join(f"{key} {value}" for key, value in report["parameters"].items())
    rows = [f"| `{key}` | {value:,} | {bars.get(key, '')} |" for key, value in report["figures"].items()]
    title = f"## {label.replace('_', ' ')}"
    command = f"`tickwright bench {name}` ({parameters})"
    return "\n".join([title, "", command, "", "| figure | measured | bar |", "|---|---:|---|", *rows, ""])


if __name__ == "__main__":
    sys.exit(main())
