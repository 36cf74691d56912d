"""Jobs, leases, workers, outbox, keys, alerts, audit."""

from tickwright.store.migrations.run import run_sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0001_foundation")
