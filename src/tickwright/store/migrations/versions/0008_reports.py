"""Reports: their types, their records, and the ledger of their parts."""

from tickwright.store.migrations.run import run_sql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0008_reports")
