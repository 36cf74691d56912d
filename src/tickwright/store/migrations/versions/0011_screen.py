"""What the operator's screen asks for: the errors of a job's attempts, and the trace that a job belongs to."""

from tickwright.store.migrations.run import run_sql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0011_screen")
