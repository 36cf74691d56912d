"""What every test may ask for lives in ``kit/fix_<topic>.py``; this file only names the topics."""

pytest_plugins = [
    "kit.fix_leftovers",
    "kit.fix_pgbouncer",
    "kit.fix_postgres",
    "kit.fix_rabbit",
    "kit.fix_redis",
]
