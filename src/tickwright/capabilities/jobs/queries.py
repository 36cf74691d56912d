"""Pieces of SQL that the statements on jobs share."""

from collections.abc import Mapping

from tickwright.store.queries import load, with_shared

_CLAIM_RANGES = load("tickwright.capabilities.jobs.sql", "claim_ranges.sql")


def with_claim_ranges(queries: Mapping[str, str]) -> Mapping[str, str]:
    """Return queries with ``{claim_range}``, ``{runnable}``, ``{claimable}`` and so on replaced by their walks."""
    return with_shared(queries, "claim_range", "runnable", "claimable", "counted", "known", of=_CLAIM_RANGES)
