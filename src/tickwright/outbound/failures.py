"""One place where aiohttp's exceptions become outcomes.

The question is always the same: had the first byte of the message left us? Everything that goes
wrong before (name, address, connection, TLS) is ``Refused``: certain that nothing was taken.
Everything after is ``Unknown``, unless the other side answered.
"""

import asyncio
import socket
import ssl

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from tickwright.outbound.resolver import BlockedError, ResolveTimeoutError
from tickwright.ports.broker import Refused, Unknown

BLOCKED_CODE = "ssrf_blocked"

_NAME_IS_UNKNOWN = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})
_TLS_CODES = {
    9: "tls_expired",  # not yet valid
    10: "tls_expired",
    18: "tls_self_signed",
    19: "tls_self_signed",  # in the chain
    62: "tls_wrong_host",
    64: "tls_wrong_host",  # the address, where the host is one
}


def blocked(reason: str) -> Refused:
    """Return the outcome for an address that must not be reached; the address itself stays unsaid."""
    text = f"This destination is not allowed ({reason}); see TICKWRIGHT_ALLOW_TARGETS."
    return Refused(BLOCKED_CODE, text, final=True)


def outcome_of(error: BaseException) -> Refused | Unknown:
    """Return what an exception of an attempt means for the message.

    Args:
        error: From aiohttp, the socket or the deadline; anything else means *unknown* as well.
    """
    match error:
        case aiohttp.ConnectionTimeoutError():
            return Refused("connect_timeout", "No connection within the timeout; nothing was sent.")
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return _tls(error)
        case aiohttp.ClientConnectorDNSError() as problem:
            return _dns(problem.os_error)
        case aiohttp.ClientConnectorError() as problem:
            return _connect(problem.os_error)
        case aiohttp.InvalidURL():
            return Refused("invalid_target", "The destination is not a valid URL.", final=True)
    return _after_sending(error)


def _after_sending(error: BaseException) -> Unknown:
    match error:
        case asyncio.TimeoutError():
            return Unknown("timeout", "No complete answer within the timeout; it may have been taken.")
        case aiohttp.ClientResponseError() | HttpProcessingError():
            return Unknown("bad_response", "The answer is not valid HTTP, or its head is too large.")
    return Unknown("connection_lost", "The connection broke before a complete answer.")


def _tls(error: BaseException) -> Refused:
    problem = getattr(error, "certificate_error", None)
    if not isinstance(problem, ssl.SSLCertVerificationError):
        return Refused("tls_failed", "The TLS handshake failed; nothing was sent.")
    code = _TLS_CODES.get(problem.verify_code, "tls_failed")
    return Refused(code, f"The certificate is not trusted: {problem.verify_message[:200]}.")


def _dns(error: OSError) -> Refused:
    match error:
        case BlockedError(reason=reason):
            return blocked(reason)
        case ResolveTimeoutError():
            return Refused("dns_timeout", "The DNS did not answer in time; nothing was sent.")
        case socket.gaierror(errno=number) if number in _NAME_IS_UNKNOWN:
            return Refused("dns_not_found", "The host name does not exist; nothing was sent.")
        case _:
            return Refused("dns_failed", "The DNS could not resolve the host name; nothing was sent.")


def _connect(error: OSError) -> Refused:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, BlockedError):
        cause = cause.__cause__
    match cause or error:
        case BlockedError(reason=reason):
            return blocked(reason)
        case ConnectionRefusedError():
            return Refused("connection_refused", "Nobody listens there; nothing was sent.")
        case _:
            return Refused("connect_failed", "The connection could not be made; nothing was sent.")
