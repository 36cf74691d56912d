"""What every test may ask for lives in ``kit/fix_<topic>.py``; this file only names the topics."""

import pytest

pytest.register_assert_rewrite("kit")  # a check of the kit says what it saw, as a test does

pytest_plugins = [
    "kit.fix_app_roles",
    "kit.fix_apps",
    "kit.fix_audiences",
    "kit.fix_batches",
    "kit.fix_bench",
    "kit.fix_brokers",
    "kit.fix_campaigns",
    "kit.fix_failures",
    "kit.fix_fanout",
    "kit.fix_garbage",
    "kit.fix_kafka",
    "kit.fix_lanes",
    "kit.fix_leftovers",
    "kit.fix_objects",
    "kit.fix_pages",
    "kit.fix_pgbouncer",
    "kit.fix_plans",
    "kit.fix_postgres",
    "kit.fix_rabbit",
    "kit.fix_redis",
    "kit.fix_reports",
    "kit.fix_unprintable",
    "kit.fix_wheels",
]
