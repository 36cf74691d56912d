"""The output of a bench: one JSON object, or a table with the bar beside each figure."""

import argparse
import json
import os
import platform
import signal
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tickwright import __version__
from tickwright.bench.ground import Ground, open_ground

Figures = dict[str, float]
Measure = Callable[[Ground, argparse.Namespace, Callable[[str], None]], Figures]


def run_bench(
    name: str,
    arguments: Sequence[str],
    measure: Measure,
    *,
    options: Callable[[argparse.ArgumentParser], None] = lambda _parser: None,
    bars: Mapping[str, str] | None = None,
    details: Mapping[str, Any] | None = None,
) -> int:
    """Measure, print, and return the exit code.

    Args:
        name: Of the bench.
        arguments: Those of the command line after the name.
        measure: Takes the ground, the options and a way to say what happens (on standard error).
        options: Adds the bench's own options.
        bars: What each figure is compared with, as text.
        details: What ``measure`` reports beside its figures, put there while it measures; in the JSON object only.
    """
    parser = argparse.ArgumentParser(prog=f"tickwright bench {name}")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output and nothing else")
    options(parser)
    parsed = parser.parse_args(list(arguments))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it started must end with it
    with open_ground() as ground:
        figures = measure(ground, parsed, _say)
        report = {
            "bench": name,
            "machine": machine(ground),
            "parameters": {key: value for key, value in vars(parsed).items() if key != "json"},
            "figures": {key: _rounded(value) for key, value in figures.items()},
            **({"details": details} if details else {}),
        }
    if parsed.json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        _print_table(report, bars or {})
    return 0


def machine(ground: Ground) -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "cpus": os.cpu_count(),
        "cpu": _cpu_model(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "tickwright": __version__,
        "postgresql": ground.facts(),
    }


def median(values: Sequence[float]) -> float:
    """Return the median of several runs."""
    return statistics.median(values)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of sorted ``values`` lie."""
    return values[min(len(values) - 1, int(share * len(values)))]


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _rounded(value: float) -> float:
    return round(value, 3) if abs(value) < 1000 else round(value)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _print_table(report: Mapping[str, Any], bars: Mapping[str, str]) -> None:
    table = Table(title=f"bench {report['bench']}")
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("bar")
    for name, value in report["figures"].items():
        table.add_row(name, f"{value:,}", bars.get(name, ""))
    console = Console()
    console.print(table)
    machine_facts = report["machine"]
    console.print(f"{machine_facts['cpus']} × {machine_facts['cpu']}, {machine_facts['system']}", style="dim")
    console.print(", ".join(f"{key}={value}" for key, value in machine_facts["postgresql"].items()), style="dim")
