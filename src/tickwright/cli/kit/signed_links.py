"""Signed links: whoever has one may read what is behind it, so no key is sent."""

from collections.abc import Awaitable, Callable

from tickwright.domain.errors import Unavailable

IDLE_S = 120
CONNECT_S = 10
Take = Callable[[bytes], Awaitable[None]]


async def fetch_url(url: str, take: Take) -> tuple[int, bytes]:
    """Hand over what is behind a link piece by piece; return the status and, if it is an error, the body.

    Raises:
        Unavailable: ``download_broken``: nobody answers, or the answer breaks off. Retry.
    """
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=IDLE_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            if answer.status != 200:
                return answer.status, await answer.read()
            async for piece in answer.content.iter_any():
                await take(piece)
            return answer.status, b""
    except (aiohttp.ClientError, TimeoutError) as error:
        reason = str(error) or type(error).__name__
        raise Unavailable("download_broken", f"the download broke off: {reason}; try again") from error
