"""A look that takes nothing wakes nobody: doorbells of batches ring for rows, not for statements."""

from tickwright.store.migrations.run import run_sql

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0019_batches_ring_for_rows")
