"""No weak lock of a table keeps processes from entering a timeline."""

from tickwright.store.migrations.run import run_sql

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0024_table_locks")
