"""An ended tracker keeps what ended it: settings that change afterwards say nothing about it."""

from tickwright.store.migrations.run import run_sql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0016_why_trackers_end")
