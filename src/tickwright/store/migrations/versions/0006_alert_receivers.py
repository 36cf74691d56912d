"""Who hears of alerts, and the secrets that sign for it."""

from tickwright.store.migrations.run import run_sql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0006_alert_receivers")
