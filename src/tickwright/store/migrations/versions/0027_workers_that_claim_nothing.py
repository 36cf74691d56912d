"""A worker that claims nothing has no share of a limited type."""

from tickwright.store.migrations.run import run_sql

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0027_workers_that_claim_nothing")
