"""Prometheus metrics: read from plain counters at scrape time, so jobs pay nothing for them.

Each plugin specifies its metrics; together they are the contract (a test compares ``docs/metrics.md``): names do not
change meaning, units are base units, labels are few and bounded. A source returns samples of what it counts.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tickwright.observe.isolation import Isolation

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


class TickwrightCollector(Collector):
    """Reads every source at scrape time; register it once per process. One that fails is logged by name.

    Args:
        sources: Callables that return samples.
        specs: Of every metric that a source may return, the plugins' among them.
    """

    def __init__(self, sources: Sequence[Source], specs: Iterable[MetricSpec]) -> None:
        self._sources = sources
        self._specs = {spec.name: spec for spec in specs}
        self._isolation = Isolation("metrics.source_failed")

    def describe(self) -> list[Metric]:
        """Return nothing, which spares the registry a scrape at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return every metric that has a value."""
        families: dict[str, Metric] = {}
        for source in self._sources:
            with self._isolation.part(f"{source.__module__}.{getattr(source, '__qualname__', type(source).__name__)}"):
                for sample in source():
                    family = families.get(sample.name)
                    if family is None:
                        family = families[sample.name] = _family(self._specs[sample.name])
                    _add(family, sample)
        yield from families.values()


_FAMILIES: Mapping[Kind, Callable[..., Metric]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _family(spec: MetricSpec) -> Metric:
    return _FAMILIES[spec.kind](spec.name, spec.help, labels=spec.labels)


def _add(family: Any, sample: Sample) -> None:
    if not isinstance(sample, HistogramSample):
        family.add_metric(list(sample.labels), float(sample.value))
        return
    total, buckets = 0, []
    for bound, count in zip((*sample.bounds, "+Inf"), sample.counts, strict=True):
        total += count
        buckets.append((str(bound), float(total)))
    family.add_metric(list(sample.labels), buckets, sum_value=sample.value)


class MetricsPage:
    """Renders ``/metrics``: calls each ``refresh``, which must limit its own time, then reads everything."""

    def __init__(self, collector: TickwrightCollector, *refresh: Callable[[], Awaitable[None]]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector)
        self._refresh = refresh

    async def render(self) -> bytes:
        """Return the page in Prometheus' text format."""
        for refresh in self._refresh:
            await refresh()
        return generate_latest(self._registry)
