"""The keys that tasks of fan-out are signed with."""

from tickwright.store.migrations.run import run_sql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0014_message_keys")
