"""What all processes know together of a partner, and the polls that wait to be carried out."""

from tickwright.store.migrations.run import run_sql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0004_partners")
