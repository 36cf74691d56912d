"""TLS that reads no more than it is good for: bounded bytes without data.

A TLS record can carry what no application ever sees: session tickets, key updates, requests for another handshake. One
read works off all of them that have arrived, in one call, and no limit above TLS counts them.
"""

import functools
import ssl
from typing import Any, cast

BARREN_BYTES_MAX = 32 * 1024
"""Tickets of a decent server have one or two KiB."""
HANDSHAKE_BYTES_MAX = 128 * 1024
"""Certificates; OpenSSL takes 100 KB of them."""
PORTION_BYTES = 16 * 1024
RECORD_BYTES = 96
"""What a record has besides its data, at the most."""


class TlsFloodError(ssl.SSLError):
    """The other side sends records without data."""


class BoundedTls(ssl.SSLObject):
    """Hands received bytes to OpenSSL in portions, and no more of them once too many became no data.

    Data that came before is read by the caller first: the call that finds too many says that it needs more, and only
    the next one fails.

    Invariants:
        OUT-3: bytes of records without data are read up to ``BARREN_BYTES_MAX`` and a portion, 128 KiB in a handshake.
    """

    _received: ssl.MemoryBIO
    _portions: ssl.MemoryBIO
    _barren_bytes = 0
    _barren_bytes_max = HANDSHAKE_BYTES_MAX
    _flooded = False

    def take_from(self, received: ssl.MemoryBIO, portions: ssl.MemoryBIO) -> None:
        """Name the bytes that arrive, and what OpenSSL reads; called once, before anything else."""
        self._received, self._portions = received, portions

    def do_handshake(self) -> None:
        """Go on with the handshake."""
        self._fed(super().do_handshake)
        self._barren_bytes, self._barren_bytes_max = 0, BARREN_BYTES_MAX

    def read(self, len: int = 1024, buffer: Any = None) -> Any:  # noqa: A002
        """Return the data of one record, or how much of it is in ``buffer`` now."""
        data = self._fed(functools.partial(super().read, len, buffer))
        count = data if buffer is not None else memoryview(data).nbytes
        if count:
            self._barren_bytes = max(0, self._barren_bytes - count - RECORD_BYTES)
        return data

    def unwrap(self) -> None:
        """Say farewell, and wait for that of the other side."""
        self._fed(super().unwrap)

    def pending(self) -> int:
        """Return how much can be read without anything from the network; uvloop stops at 0."""
        return super().pending() + self._portions.pending

    def _fed(self, step: Any) -> Any:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                if not self._feed():
                    raise

    def _feed(self) -> bool:
        """Return whether there was more."""
        if self._flooded:
            raise TlsFloodError("records without data and without end")
        self._flooded = self._barren_bytes > self._barren_bytes_max
        portion = b"" if self._flooded else self._received.read(PORTION_BYTES)
        self._barren_bytes += self._portions.write(portion)
        return bool(portion)


def bounded(context: ssl.SSLContext) -> ssl.SSLContext:
    """Make all connections of a client's context :class:`BoundedTls`; twice is harmless. Returns the context."""

    def wrap_bio(incoming: ssl.MemoryBIO, *rest: Any, **options: Any) -> ssl.SSLObject:
        portions = ssl.MemoryBIO()
        made = cast("BoundedTls", type(context).wrap_bio(context, portions, *rest, **options))
        made.take_from(incoming, portions)
        return made

    context.options |= ssl.OP_NO_RENEGOTIATION
    context.sslobject_class = BoundedTls
    context.wrap_bio = wrap_bio  # type: ignore[method-assign]
    return context


@functools.cache
def system_trust() -> ssl.SSLContext:
    """Return a bounded context with the system's trust anchors, read once."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return bounded(context)
