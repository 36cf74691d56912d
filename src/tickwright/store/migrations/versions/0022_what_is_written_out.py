"""Payloads, headers and texts of a job are bounded by what they are written out as, where they come in."""

from tickwright.store.migrations.run import run_sql

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0022_what_is_written_out")
