"""The age of an idempotency key counts from the end of its job."""

from tickwright.store.migrations.run import run_sql

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0026_keys_of_jobs_that_ended")
