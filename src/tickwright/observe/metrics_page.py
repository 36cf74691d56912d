"""The page ``/metrics`` in Prometheus' text format; only this module loads Prometheus' library."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tickwright.observe.isolation import Isolation
from tickwright.observe.metrics import HistogramSample, Kind, MetricSpec, Sample, Source


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
        return self.render_now()

    def render_now(self) -> bytes:
        """Return the page without a refresh."""
        return generate_latest(self._registry)
