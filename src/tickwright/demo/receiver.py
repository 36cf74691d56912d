"""The other side of the example's callbacks: a small server that trusts nothing but the signature.

Runs as a process of its own (``python -m tickwright.demo.receiver``). It says its port on standard
output, hears its secret on standard input, and ends when that is closed, so it cannot outlive ``up``
even when that is killed. Its connections have the bounds of every listener of Tickwright.
"""

import asyncio
import sys
from typing import Any

from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tickwright.demo.couriers import courier_routes
from tickwright.demo.providers import provider_routes
from tickwright.rest.admission import ListenerLimits
from tickwright.rest.listener import Listener, bind

BODY_BYTES_MAX = 65_536
BODY_S = 10.0
LIMITS = ListenerLimits(connections=1024, per_address=1024)
"""Only this machine reaches it."""
REMEMBERED_MAX = 10_000


class Receiver:
    """Verifies, refuses what is older than what it knows, and takes each message once."""

    def __init__(self) -> None:
        self.webhook: Webhook | None = None
        self._fences: dict[str, int] = {}

    async def take(self, request: Request) -> Response:
        """Answer one callback."""
        body = await _read(request)
        if isinstance(body, Response):
            return body
        if self.webhook is None:
            return PlainTextResponse("no secret yet", 503, headers={"Retry-After": "1"})
        try:
            self.webhook.verify(body, dict(request.headers))
        except WebhookVerificationError:
            return PlainTextResponse("bad signature", 401)
        fence = int(request.headers["tickwright-fence"])
        known = self._fences.get(request.headers["webhook-id"])
        if known is not None:
            return PlainTextResponse("known already", 409 if fence < known else 200)
        self._remember(request.headers["webhook-id"], fence)
        return PlainTextResponse("thank you")

    def _remember(self, message_id: str, fence: int) -> None:
        self._fences[message_id] = fence
        if len(self._fences) > REMEMBERED_MAX:
            del self._fences[next(iter(self._fences))]


async def _read(request: Request) -> bytes | Response:
    """Return a body, or the refusal of one that is too large or does not end in time."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > BODY_BYTES_MAX:
                    return PlainTextResponse("too large", 413)
    except TimeoutError:
        return PlainTextResponse("too slow", 408)
    return bytes(body)


def server_of(receiver: Receiver, limits: ListenerLimits = LIMITS) -> Listener:
    """Return the server of a receiver, which answers as couriers and providers, too."""
    routes = [Route("/callback", receiver.take, methods=["POST"]), *courier_routes(), *provider_routes()]
    return Listener(Starlette(routes=routes), limits=limits, drain_s=1)


async def _serve() -> None:
    receiver, listening = Receiver(), bind("127.0.0.1", 0)
    server = server_of(receiver)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    loop = asyncio.get_running_loop()
    secret = await loop.run_in_executor(None, sys.stdin.readline)
    if secret:
        receiver.webhook = Webhook(secret.strip())
        await loop.run_in_executor(None, _read_to_the_end, sys.stdin)
    server.should_exit = True
    await serving


def _read_to_the_end(stream: Any) -> None:
    while stream.read(1024):
        pass


if __name__ == "__main__":
    asyncio.run(_serve())
