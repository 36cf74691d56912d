"""What comes in is checked once per statement, which costs less than a condition that is planned with each one."""

from tickwright.store.migrations.run import run_sql

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0023_checks_of_what_comes_in")
