"""The schema's history: Alembic revisions whose text is raw SQL, forward on a live system."""
