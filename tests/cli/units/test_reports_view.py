"""The line about reports: how many have each status, and the last file."""

from msgspec.structs import replace

from tickwright.capabilities.reports.overview import LastFile, ReportsNow, line_of

FILE = LastFile(7, "withdrawals", 5000, 250_880, "s3://bucket/reports/7/1-1/withdrawals-7.csv", 0.44)


def test_the_line_has_every_status_and_the_last_file() -> None:
    """How large it is, how long it took, and where it is."""
    assert line_of(ReportsNow(1, 5, 1, 2, 3, 40, 5, FILE)) == (
        "reports 6: pending 1, querying 2, merging 3 · last hour: finished 40, failed 5 · "
        "last file: withdrawals 7, 5000 rows, 245 KiB in 0.4 s · s3://bucket/reports/7/1-1/withdrawals-7.csv"
    )


def test_what_was_counted_up_to_a_bound_is_at_least_that() -> None:
    """No count goes beyond ten thousand; where there is no file, none is named."""
    assert line_of(ReportsNow(9_000, 1_000, 9_000, 900, 100, 9_999, 1, None)) == (
        "reports ≥10000: pending ≥9000, querying ≥900, merging ≥100 · last hour: finished ≥9999, failed ≥1"
    )


def test_sizes_and_times_have_the_unit_that_fits() -> None:
    """Bytes to GiB; seconds, then minutes."""
    small = line_of(ReportsNow(0, 0, 0, 0, 0, 1, 0, replace(FILE, bytes=17, took_s=99.96)))
    large = line_of(ReportsNow(0, 0, 0, 0, 0, 1, 0, replace(FILE, bytes=3 * 2**30, took_s=600.0)))
    assert "17 bytes in 100.0 s" in small
    assert "3.0 GiB in 10 min" in large
