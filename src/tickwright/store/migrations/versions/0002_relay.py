"""The relay's index and doorbell; the table of the in-PostgreSQL transport."""

from tickwright.store.migrations.run import run_sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0002_relay")
