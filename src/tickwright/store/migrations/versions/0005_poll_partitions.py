"""Who reads which partition of the polls' topic: the fence of what is carried out from Kafka."""

from tickwright.store.migrations.run import run_sql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0005_poll_partitions")
