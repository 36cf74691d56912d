"""Keys with scopes: a service that only delivers parts or events opens nothing else."""

from tickwright.store.migrations.run import run_sql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the SQL file of this revision."""
    run_sql("0017_key_scopes")
