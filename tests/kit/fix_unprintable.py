"""Failures whose text is no UTF-8: a worker sends them as escapes; a lone surrogate would end the whole run."""

from collections.abc import Generator
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Clean what a worker is about to send."""
    return _clean((yield))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_clean(name): _clean(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_clean(one) for one in value)
    return value
