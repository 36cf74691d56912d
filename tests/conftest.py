"""What every test may ask for lives in ``kit/fix_<topic>.py``; this file only names the topics."""

import pytest

pytest.register_assert_rewrite("kit")  # a check of the kit says what it saw, as a test does

pytest_plugins = [
    "tickwright.testing.plugin",
    "kit.fix_app_roles",
    "kit.fix_lanes",
    "kit.fix_leftovers",
    "kit.fix_pages",
    "kit.fix_plans",
    "kit.fix_servers",
    "kit.fix_testing",
    "kit.fix_worlds",
]
