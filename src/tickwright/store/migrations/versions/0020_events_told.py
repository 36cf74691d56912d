"""A tracker keeps a mark of the events that it was told last: the same answer again costs one comparison."""

from tickwright.store.migrations.run import run_sql

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0020_events_told")
