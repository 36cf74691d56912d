"""Asks a partner that is configuration only, by HTTP; ``courier_terms`` says what the configuration means.

Trusts nothing that comes back: the body is bounded, redirects are not followed, addresses are guarded.
"""

import math
from urllib.parse import quote

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from tickwright.capabilities.polling.consumer.courier import Answer, Poll, Result
from tickwright.capabilities.polling.consumer.courier_schema import BODY_BYTES_MAX, PLACE, HttpTerms, answer_of
from tickwright.domain.addresses import AllowList, refusal_unasked
from tickwright.domain.errors import Rejected
from tickwright.domain.retry_after import answered_at
from tickwright.domain.targets import WebTarget, parse_target
from tickwright.outbound import GuardedSessions, blocked, outcome_of
from tickwright.partners.outcomes import Answered, Failed
from tickwright.partners.outcomes import outcome_of as outcome_of_status
from tickwright.ports.ids import unix_seconds

DOTS = frozenset({"", ".", ".."})


class HttpCourier:
    """Asks one partner by ``GET``.

    Args:
        terms: How.
        allow: Networks that may be reached besides public addresses.
        connections_max: To this partner; a partner has connections of its own, so a slow one takes nobody else's.

    Raises:
        Rejected: ``ssrf_blocked``, the URL names an address that must not be reached. Permanent.
    """

    def __init__(self, terms: HttpTerms, *, allow: AllowList, connections_max: int) -> None:
        self._terms = terms
        self._headers = {"user-agent": "Tickwright", "accept": "application/json", "accept-encoding": "identity"}
        self._headers.update(terms.headers)
        self._tls = check_url(terms.url, allow).tls
        head, _, tail = terms.url.partition(PLACE)
        self._head, self._tail = head, tail
        self._sessions = GuardedSessions(allow=allow, connections_max=2 * connections_max)

    async def __call__(self, poll: Poll) -> Result:
        """Return what the partner says; never raises for its doing."""
        if poll.external_id in DOTS:  # every server reads these as a way out of the template's folder
            return Answer(None)
        generation = self._sessions.acquire(tls=self._tls)
        try:
            return await self._get(generation.session, poll)
        except (TimeoutError, aiohttp.ClientError, HttpProcessingError, OSError) as error:
            return Failed(outcome_of(error).reason)
        finally:
            self._sessions.release(generation)

    async def _get(self, session: aiohttp.ClientSession, poll: Poll) -> Result:
        url = URL(f"{self._head}{quote(poll.external_id, safe='')}{self._tail}", encoded=True)
        total_s = poll.timeout.total_seconds()
        timeout = aiohttp.ClientTimeout(total=total_s, ceil_threshold=math.inf)
        response = await session.get(url, headers=self._headers, allow_redirects=False, timeout=timeout)
        try:
            now_s = answered_at(response.headers.get("date"), now_unix_s=unix_seconds())
            outcome = outcome_of_status(response.status, response.headers.get("retry-after"), now_unix_s=now_s)
            if not isinstance(outcome, Answered):
                return outcome
            if response.status in self._terms.unknown:
                return Answer(None)
            if response.status >= 300:
                return Failed(f"HTTP {response.status}")
            body = await _body(response)
        finally:
            response.release()
        return answer_of(body, self._terms)

    async def aclose(self) -> None:
        """Close its connections. Twice is harmless."""
        await self._sessions.aclose()


def check_url(url: str, allow: AllowList) -> WebTarget:
    """Return where a template leads, unless it is not HTTP or its address must not be reached.

    Raises:
        Rejected: ``invalid_target``, ``ssrf_blocked``. Permanent.
    """
    target = parse_target(url.replace(PLACE, "x"))
    if not isinstance(target, WebTarget):
        raise Rejected("invalid_target", "A partner is asked by https:// (or an allowed http://).")
    reason = refusal_unasked(target.literal, target.port, tls=target.tls, allow=allow)
    if reason is not None:
        raise Rejected("ssrf_blocked", blocked(reason).reason, reason=reason)
    return target


async def _body(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for chunk in response.content.iter_any():
        parts.append(chunk)
        size += len(chunk)
        if size > BODY_BYTES_MAX:
            break
    return b"".join(parts)
