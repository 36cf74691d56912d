"""A random word of each report, by which its hash in Redis is known to be its own."""

from tickwright.store.migrations.run import run_sql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0010_report_nonce")
