"""Parts of reports: claimed, fetched, stored and delivered."""
