"""Jobs that are inserted one by one inside one statement."""

from tickwright.store.migrations.run import run_sql

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0031_jobs_one_by_one")
