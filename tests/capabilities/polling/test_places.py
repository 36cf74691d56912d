"""Places: the same in every release, and nearly even after any number of steps.

``place_of`` is the formula in exact integers; the database's function has to agree with it.
"""

from collections import Counter

import asyncpg
from hypothesis import given
from hypothesis import strategies as st

STEPS = st.integers(1, 10_000_000)
SEQUENCE_STEP = (
    -1640531527
)  # 2^32 divided by the golden ratio, as a signed number: Knuth, TAOCP 3, 6.4 (Fibonacci hashing)
PARTNER_STEP = 7919
RING = 2**32


def place_of(first_slot_id: int, interval_minutes: int, partner_no: int, n: int) -> int:
    """Return the place of the ``n``-th tracker of a partner on a wheel: ``slot_id * 60 + second``."""
    fraction = (n + partner_no * PARTNER_STEP) % RING * SEQUENCE_STEP % RING
    return first_slot_id * 60 + (fraction * interval_minutes * 60 >> 32)


async def test_the_database_computes_the_place_that_the_formula_says(database_url: str) -> None:
    """Over wheels, partners and steps, also very large ones."""
    cases = [
        (first, interval, partner, n)
        for first in (0, 120, 99_999)
        for interval in (1, 7, 120, 1440, 10_080)
        for partner in (1, 2, 32_767)
        for n in (1, 2, 3, 1000, 123_456_789, 2**40)
    ]
    connection = await asyncpg.connect(database_url)
    try:
        rows = await connection.fetch(
            """SELECT tickwright.place_of(u.a, u.b, u.c, u.d) FROM unnest($1::integer[], $2::integer[], $3::smallint[],
                      $4::bigint[]) WITH ORDINALITY AS u (a, b, c, d, n) ORDER BY u.n""",
            *map(list, zip(*cases, strict=True)),
        )
    finally:
        await connection.close()
    assert [row[0] for row in rows] == [place_of(*case) for case in cases]


@given(start=STEPS, partner_no=st.integers(1, 32_767), interval=st.sampled_from([1, 5, 30, 120, 240]))
def test_any_run_of_places_is_nearly_even(start: int, partner_no: int, interval: int) -> None:
    """From a mean of 100 on, the busiest slot of the wheel holds at most 1.04 times the mean."""
    places = Counter(place_of(0, interval, partner_no, start + n) // 60 for n in range(100 * interval))
    assert sum(places.values()) == 100 * interval
    assert max(places.values()) <= 104


@given(interval=st.integers(1, 10_080), partner_no=st.integers(1, 32_767), n=st.integers(1, 2**40))
def test_a_place_is_on_its_wheel(interval: int, partner_no: int, n: int) -> None:
    """It lies within the wheel's slots, whatever the arguments."""
    assert 40 * 60 <= place_of(40, interval, partner_no, n) < (40 + interval) * 60
