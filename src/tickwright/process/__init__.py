"""One process: settings, the services of its roles, signals, health and the supervisor."""
