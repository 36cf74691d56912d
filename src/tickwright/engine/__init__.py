"""What every capability uses and what knows none of them: sessions, leases, claimed work, wakeups, the outbox."""
