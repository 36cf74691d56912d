"""Run every bench and write ``docs/performance.md`` from what it measured; ``make bench`` calls it.

With labels only those benches run again; every other section of the page stays as it was measured. Those of ten million
trackers, and that of growth over fifty intervals, run only where they are named.

Raw reports go to ``bench/results/NAME.json``. Nothing is written by hand into the page.
"""

import argparse
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
    ("results", "results", []),
    ("recovery", "recovery", []),
    ("obstacles", "obstacles", ["--seconds", "600"]),
    ("idle", "idle", []),
    ("callbacks", "callbacks", []),
    ("protocol", "protocol", []),
    ("groups", "groups", ["--runs", "3"]),
    ("workflow", "workflow", []),
    ("memory", "memory", []),
    ("fleet", "fleet", []),
    ("fleet_of_10", "fleet", ["--workers", "10", "--faults", "1"]),
    ("polling", "polling", []),
    ("polling_end_to_end", "polling", ["--end-to-end"]),
    ("polling_kills", "polling", ["--end-to-end", "--kill-every", "30"]),
    ("fanout", "fanout", []),
    ("gather", "gather", []),
    ("periodic", "periodic", []),
    ("campaigns", "campaigns", []),
    ("dashboard", "dashboard", []),
    ("polling_turns_10M", "polling", ["--trackers", "10000000", "--only", "turns", "--intervals", "0"]),
    ("polling_growth", "polling", ["--only", "turns", "--intervals", "50"]),
    ("polling_end_to_end_10M", "polling", ["--trackers", "10000000", "--end-to-end"]),
]
LARGE = {"polling_turns_10M", "polling_end_to_end_10M", "polling_growth"}  # a quarter of an hour each, or more
QUICK = {  # by label
    "jobs": ["--runs", "1"],
    "results": ["--rounds", "3"],
    "protocol": ["--runs", "1", "--jobs", "20000"],
    "groups": ["--runs", "1", "--backlog", "50000", "--others", "2000", "--span", "3", "--plain", "50000"],
    "workflow": ["--runs", "1", "--chains", "100", "--predecessors", "10000"],
    "obstacles": ["--runs", "1", "--seconds", "15"],
    "idle": ["--seconds", "20"],
    "fleet": ["--workers", "10", "--seconds", "10", "--faults", "1"],
    "fleet_of_10": ["--seconds", "10"],
    "fanout": ["--entities", "1000"],
    "gather": ["--users", "100000", "--reports", "20"],
    "periodic": ["--seconds", "20"],
    "campaigns": ["--clients", "100000", "--campaigns", "100", "--occurrences", "20"],
    "dashboard": ["--jobs", "100000", "--trackers", "100000", "--rounds", "20", "--seconds", "15", "--drain", "100000"],
    "polling": ["--trackers", "100000", "--intervals", "2", "--polls", "20000"],
    "polling_end_to_end": ["--trackers", "100000", "--minutes", "1"],
    "polling_kills": ["--trackers", "100000", "--minutes", "1"],
}
HEAD = """# Performance

Written by `make bench`; every figure was measured on the machine named below or in its section, each section in one
run. Client, workers and PostgreSQL share its processors, so read the drains as shares of `limit_2p`: what pgbench gets
out of a bare table (HOT claim and DELETE in batches of 1,000, two clients) in the same run. The benches are
`src/tickwright/bench/`. Polls went through Kafka where a section says `kafka True`, on this machine too, and otherwise
through PostgreSQL alone.
"""


def main() -> int:
    """Run them all, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("labels", metavar="LABEL", nargs="*", help="a bench to run again")
    given = parser.parse_args()
    quick, wanted = given.quick, set(given.labels)
    if wanted - (labels := {label for label, _, _ in RUNS}):
        parser.error(f"no such bench: {', '.join(sorted(wanted - labels))}. There are {', '.join(sorted(labels))}")
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    for label, name, arguments in RUNS:
        if label not in wanted and (wanted or label in LARGE):
            continue
        extra = QUICK.get(label, []) if quick else []
        print(f"bench {name} {' '.join([*arguments, *extra])}", file=sys.stderr)
        command = [sys.executable, "-m", "tickwright", "bench", name, *arguments, *extra, "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        report = json.loads(done.stdout)
        (results / f"{label}.json").write_text(json.dumps(report, indent=1))
    reports = {
        label: json.loads(path.read_text()) for label, _, _ in RUNS if (path := results / f"{label}.json").exists()
    }
    PAGE.write_text(page(reports, PAGE.read_text() if PAGE.exists() else ""))
    return 0


def page(reports: dict[str, dict[str, Any]], before: str) -> str:
    """Return the page's text: the sections of ``reports`` are new, the others are those of ``before``."""
    head, *old = before.split("\n## ")
    kept = {text.partition("\n")[0]: f"## {text.rstrip()}\n" for text in old}
    where = next((line for line in head.splitlines() if line.startswith("Machine: ")), None)
    if where is None or len(reports) == len(RUNS):  # otherwise a section that was measured elsewhere names its own
        where = described(next(iter(reports.values()))["machine"])
    parts = [HEAD, f"{where}\n"]
    for label, name, _ in RUNS:
        title = label.replace("_", " ")
        if label in reports:
            parts.append(section(title, name, reports[label], where))
        elif title in kept:
            parts.append(kept[title])
    return "\n".join(parts)


def described(machine: dict[str, Any]) -> str:
    """Return the machine and its PostgreSQL as text."""
    size = f"{machine['cpus']} × {machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB, {machine['system']}"
    settings = ", ".join(f"`{key}={value}`" for key, value in machine["postgresql"].items())
    return f"Machine: {size}, Python {machine['python']}, Tickwright {machine['tickwright']}. PostgreSQL: {settings}."


def section(title: str, name: str, report: dict[str, Any], where: str) -> str:
    """Return one bench's table; with its own machine, if that is not the page's."""
    bars = import_module(f"tickwright.bench.{name}").BARS
    parameters = ", ".join(f"{key} {value}" for key, value in report["parameters"].items() if value is not None)
    rows = [f"| `{key}` | {value:,} | {bars.get(key, '')} |" for key, value in report["figures"].items()]
    command = f"`tickwright bench {name}` ({parameters})"
    about = [command, "", *([report["note"], ""] if "note" in report else [])]  # of the run
    if (machine := described(report["machine"])) != where:
        about += [machine, ""]
    return "\n".join([f"## {title}", "", *about, "| figure | measured | bar |", "|---|---:|---|", *rows, ""])


if __name__ == "__main__":
    sys.exit(main())
