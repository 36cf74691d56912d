"""A changed timeline of the database is noticed, and no number that was given out on the old one is given out again."""

from tickwright.store.migrations.run import run_sql

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0018_timelines")
