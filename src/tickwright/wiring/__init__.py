"""Where things are built and joined: settings, database, brokers, roles. The only room that knows them all."""
