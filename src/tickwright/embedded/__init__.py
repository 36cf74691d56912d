"""The zero-set-up PostgreSQL: a private server that starts with the first client and stops with the last.

You can try Tickwright without installing a database, and keep its data. This package runs real PostgreSQL binaries;
the rest of the product sees an ordinary server.

Who is authoritative, and on what:

======================  ==============================================================
question                who answers
======================  ==============================================================
may I start or stop?    the kernel: an exclusive lock on ``start.lock``
does anybody use it?    the kernel: every client holds a shared lock on ``users.lock``
is it ready?            the server: it accepts a connection on its socket
what must be cleared?   ``/proc``: a live ``postgres`` that works in the data directory
======================  ==============================================================

A process id in a file is never believed. Locks vanish with their holder, so ``kill -9`` of a
client, of the server or of everything leaves nothing that the next start has to wait for.
The one thing that a killed *last* client leaves behind is a running server: the next client
joins it, and stops it when it is the last one out.
"""

from tickwright.embedded.databases import ensure_database, ensure_reader
from tickwright.embedded.server import EmbeddedServer

__all__ = ["EmbeddedServer", "ensure_database", "ensure_reader"]
