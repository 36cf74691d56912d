"""Payloads of a program: what is refused has a stable code, however deep it is nested."""

from typing import Any

import msgspec
import pytest

from tickwright.app.payloads import to_json
from tickwright.domain.errors import Rejected


def nested(levels: int, innermost: Any, *, in_lists: bool) -> Any:
    """Return ``innermost`` inside so many lists or dictionaries."""
    for _ in range(levels):
        innermost = [innermost] if in_lists else {"a": innermost}
    return innermost


@pytest.mark.parametrize("levels", [2000, 20_000])
@pytest.mark.parametrize("in_lists", [True, False])
@pytest.mark.parametrize("innermost", [[1], {"a": None}, [10**18, 1], "\u0001", [None, 0.5]], ids=str)
def test_a_payload_that_is_nested_too_deep_is_refused_by_its_code(levels: int, in_lists: bool, innermost: Any) -> None:
    """Also where the encoder takes it and a check that follows does not."""
    with pytest.raises(Rejected) as refused:
        to_json(nested(levels, innermost, in_lists=in_lists))
    assert refused.value.code == "too_deep"


@pytest.mark.parametrize("levels", range(300, 1000, 50))
def test_a_list_of_lists_is_kept_or_refused(levels: int) -> None:
    """No number of levels is an error of ours."""
    payload = nested(levels, 1, in_lists=True)
    try:
        kept = to_json(payload)
    except Rejected as error:
        refused = error
    else:
        assert kept.count("[") == levels
        return
    assert refused.code == "too_deep"


@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}")], ids=["lists", "objects"])
def test_what_is_encoded_already_is_held_to_its_levels(brackets: tuple[bytes, bytes]) -> None:
    """PostgreSQL would refuse it, and with it all jobs that are written in the same statement."""
    opening, closing = brackets
    for levels in (2000, 10_000):
        with pytest.raises(Rejected) as refused:
            to_json({"inside": msgspec.Raw(opening * levels + b"1" + closing * levels)})
        assert refused.value.code == "too_deep"
    assert to_json(msgspec.Raw(opening * 1000 + b"1" + closing * 1000)).count(opening.decode()) == 1000
    assert to_json(msgspec.Raw(b"[%s]" % b",".join([b'"[[[\\""', b"[]"] * 2000))).count("[]") == 2000
