"""Entities that are polled module by module, and what is known of each."""

from tickwright.store.migrations.run import run_sql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0007_fanout")
