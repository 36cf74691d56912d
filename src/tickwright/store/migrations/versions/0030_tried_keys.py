"""The keys of messages that were tried, by index."""

from tickwright.store.migrations.run import run_sql

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0030_tried_keys")
