"""A key whose job is ending at this moment makes no second job."""

from tickwright.store.migrations.run import run_sql

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0025_keys_of_jobs_that_end")
