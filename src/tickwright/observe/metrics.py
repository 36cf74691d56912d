"""Prometheus metrics: read from plain counters at scrape time, so jobs pay nothing for them.

Each plugin specifies its metrics; together they are the contract (a test compares ``docs/metrics.md``): names do not
change meaning, units are base units, labels are few and bounded. A source returns samples of what it counts, and
:mod:`tickwright.observe.metrics_page` makes the page of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram"]
LATENESS_BUCKETS_S = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    60.0,
    600.0,
    3600.0,
)
"""Upper bounds of the buckets of jobs' start lateness."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric of the contract."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a counter or gauge of the contract."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HistogramSample(Sample):
    """One histogram: a count per bucket, the last one without a bound; ``value`` is the sum of what was observed."""

    bounds: Sequence[float] = ()
    counts: Sequence[int] = ()


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Source = Callable[[], Sequence[Sample]]
NAMED_MAX = 100


def busiest(
    named: Mapping[str, dict[str, Any]], how_busy: Callable[[dict[str, Any]], int], bytes_max: int
) -> dict[str, dict[str, Any]]:
    """Return the counters of the busiest, at most a hundred, as many as fit into ``bytes_max`` of JSON."""
    kept, room = {}, bytes_max
    for name, counters in sorted(named.items(), key=lambda item: (-how_busy(item[1]), item[0]))[:NAMED_MAX]:
        room -= len(msgspec.json.encode({name: counters}))
        if room < 0:
            break
        kept[name] = counters
    return kept
