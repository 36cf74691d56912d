"""Operations: API keys, the audit trail, workers, leases, the outbox, alerts and the overview."""
