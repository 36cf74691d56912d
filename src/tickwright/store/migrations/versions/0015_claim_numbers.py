"""A session can refuse claims that it sent earlier, so that what it releases is not claimed again behind its back."""

from tickwright.store.migrations.run import run_sql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0015_claim_numbers")
