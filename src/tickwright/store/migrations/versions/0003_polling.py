"""Accounts, partners, wheels, trackers, and what is on its way to be polled."""

from tickwright.store.migrations.run import run_sql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0003_polling")
