"""The zero-set-up PostgreSQL: a private server that starts with the first client and stops with the last.

You can try Tickwright without installing a database, and keep its data. This package runs real PostgreSQL binaries; the
rest of the product uses an ordinary server.

Who is authoritative, and on what:

======================  ==============================================================
question                authority
======================  ==============================================================
may I start or stop?    the kernel: an exclusive lock on ``start.lock``
is it in use?           the kernel: every client holds a shared lock on ``users.lock``
is it ready?            the server: it accepts a connection on its socket
what must be cleared?   ``/proc``: a live ``postgres`` that works in the data directory
======================  ==============================================================

A process id in a file is never trusted. The kernel drops locks with their holder, so after a ``kill -9`` of a client,
of the server or of everything, the next start waits for nothing. If the *last* client is killed, the server continues
to run. The next client joins it, and stops it when it is the last one to leave.
"""

from tickwright.embedded.server import EmbeddedServer, ensure_database, ensure_reader

__all__ = ["EmbeddedServer", "ensure_database", "ensure_reader"]
