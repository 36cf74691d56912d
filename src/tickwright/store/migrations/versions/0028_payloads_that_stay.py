"""A job from before a rule of payloads is moved as it is."""

from tickwright.store.migrations.run import run_sql

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0028_payloads_that_stay")
