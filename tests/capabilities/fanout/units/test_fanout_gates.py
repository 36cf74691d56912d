"""Gates of modules in the environment: ``ENABLE_<MODULE>_POLLING``."""

import pytest

from tickwright.capabilities.fanout.plugin import read_gates as gates
from tickwright.domain.errors import Rejected


def test_any_module_has_a_flag_of_its_name() -> None:
    """The document's ``ENABLE_SESSIONS_POLLING`` and every other of its form; other variables do not count."""
    environment = {
        "ENABLE_SESSIONS_POLLING": "true",
        "ENABLE_CDRS_POLLING": " Off ",
        "ENABLE_A_B_2_POLLING": "1",
        "ENABLE_sessions_POLLING": "true",
        "ENABLE__POLLING": "true",
        "ENABLE_SESSIONS": "true",
    }
    assert gates(environment) == {"SESSIONS": True, "CDRS": False, "A_B_2": True}


def test_a_flag_that_is_neither_true_nor_false_is_refused_with_every_other() -> None:
    """Otherwise only missing polls would show it."""
    with pytest.raises(Rejected) as refused:
        gates({"ENABLE_SESSIONS_POLLING": "maybe", "ENABLE_CDRS_POLLING": "", "ENABLE_TARIFFS_POLLING": "no"})
    assert refused.value.code == "invalid_environment"
    assert (
        refused.value.message
        == "ENABLE_CDRS_POLLING: write true or false\nENABLE_SESSIONS_POLLING: write true or false"
    )
