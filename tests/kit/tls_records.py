"""The server's side of a TLS 1.3 connection whose records a test writes itself, and records without data."""

import asyncio
import hmac
import ssl
import struct
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

DATA, HANDSHAKE = 23, 22
RECORD_BYTES_MAX = 16 * 1024
TICKET = bytes.fromhex("0400000e00001c20000000010000017800" + "00")
KEY_UPDATE = bytes.fromhex("1800000100")
_HELLO_REQUEST = bytes(4)


def hello_requests() -> bytes:
    """Return an unencrypted handshake record: requests to begin another handshake, which clients skip."""
    content = _HELLO_REQUEST * (RECORD_BYTES_MAX // len(_HELLO_REQUEST))
    return struct.pack(">BHH", HANDSHAKE, 0x0303, len(content)) + content


def server_only(context: ssl.SSLContext, keys: Path) -> ssl.SSLContext:
    """Return the context, for TLS 1.3, silent after the handshake, its secrets in a file."""
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.keylog_filename = str(keys)
    return context


class RawTls:
    """One accepted connection, of a context of :func:`server_only`."""

    def __init__(self, context: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._keys = Path(context.keylog_filename)
        self._number = 0

    async def shake_hands(self) -> None:
        """Complete the handshake, and read its keys."""
        hello = b""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._writer.write(self._out.read())
                hello = await self._more() if not hello else hello + await self._more()
        self._writer.write(self._out.read())
        client = hello[11:43].hex()
        lines = [line.split() for line in self._keys.read_text().splitlines()]
        secret = next(bytes.fromhex(line[2]) for line in lines if line[:2] == ["SERVER_TRAFFIC_SECRET_0", client])
        self._take_keys(secret)

    async def read_request(self) -> bytes:
        """Return the head of a request."""
        request = b""
        while b"\r\n\r\n" not in request:
            try:
                request += self._tls.read(RECORD_BYTES_MAX)
            except ssl.SSLWantReadError:
                await self._more()
        return request

    def record(self, content: bytes, kind: int = DATA) -> bytes:
        """Return the next record."""
        nonce = (self._iv ^ self._number).to_bytes(12, "big")
        self._number += 1
        head = struct.pack(">BHH", DATA, 0x0303, len(content) + 17)
        return head + self._cipher.encrypt(nonce, content + bytes([kind]), head)

    async def _more(self) -> bytes:
        received = await self._reader.read(65536)
        if not received:
            raise ConnectionResetError
        self._in.write(received)
        return received

    def _take_keys(self, secret: bytes) -> None:
        cipher = self._tls.cipher()
        assert cipher is not None
        name = cipher[0]
        digest = "sha384" if "SHA384" in name else "sha256"
        key = _expand(digest, secret, b"key", 16 if "128" in name else 32)
        self._cipher = ChaCha20Poly1305(key) if "CHACHA" in name else AESGCM(key)
        self._iv = int.from_bytes(_expand(digest, secret, b"iv", 12), "big")


def _expand(digest: str, secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label of RFC 8446, for at most one block."""
    info = struct.pack(">HB", size, 6 + len(label)) + b"tls13 " + label + b"\0"
    return hmac.new(secret, info + b"\1", digest).digest()[:size]
