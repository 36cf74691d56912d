"""The bench of awaited results, in small."""

import argparse

from tickwright.bench.ground import Ground
from tickwright.bench.results import BARS, waiters


def test_it_measures_what_it_names(bench_ground: Ground) -> None:
    """Exactly its figures; callers that wait hold one connection."""
    options = argparse.Namespace(waiters=5, rounds=2, seconds=0.1, seed=7)
    figures = waiters._measure(bench_ground, options, lambda _said: None)
    assert figures.keys() == BARS.keys()
    assert figures["connections"] == 1
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
