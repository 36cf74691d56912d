"""Batches and campaigns: definitions with versions, executions in chunks, one action per client."""

from tickwright.store.migrations.run import run_sql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0009_batches")
