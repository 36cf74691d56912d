"""Numbers that do not run out, what untrusted roles may write, and the rights of roles that use plain SQL only."""

from tickwright.store.migrations.run import run_sql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0012_numbers_and_roles")
