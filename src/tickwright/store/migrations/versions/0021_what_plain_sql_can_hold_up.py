"""A role for plain SQL writes no instant that cannot be shown, locks no table, and moves no sequence."""

from tickwright.store.migrations.run import run_sql

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0021_what_plain_sql_can_hold_up")
