"""Quiet hours on the nights when clocks change."""

from tickwright.store.migrations.run import run_sql

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0029_quiet_nights")
