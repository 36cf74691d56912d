"""Sessions of browsers: a row for each, instead of the API key in a cookie."""

from tickwright.store.migrations.run import run_sql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0013_sessions")
