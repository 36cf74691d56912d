"""What the tests share: real servers, a proxy that breaks connections, bounded waiting, fixtures."""
