"""The other side of the example's callbacks: a small server that trusts nothing but the signature.

Runs as a process of its own (``python -m tickwright.cli.world.receiver``). It says its port on standard
output, hears its secret on standard input, and ends when that is closed, so it cannot outlive ``up``
even when that is killed.
"""

import asyncio
import sys
from typing import Any

from aiohttp import web
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from tickwright.cli.world.couriers import add_couriers
from tickwright.cli.world.providers import add_providers

BODY_BYTES_MAX = 65_536
REMEMBERED_MAX = 10_000


class Receiver:
    """Verifies, refuses what is older than what it knows, and takes each message once."""

    def __init__(self) -> None:
        self.webhook: Webhook | None = None
        self._fences: dict[str, int] = {}

    async def take(self, request: web.Request) -> web.Response:
        """Answer one callback."""
        body = await request.read()
        if self.webhook is None:
            return web.Response(status=503, text="no secret yet", headers={"Retry-After": "1"})
        try:
            self.webhook.verify(body, dict(request.headers))
        except WebhookVerificationError:
            return web.Response(status=401, text="bad signature")
        fence = int(request.headers["tickwright-fence"])
        known = self._fences.get(request.headers["webhook-id"])
        if known is not None:
            return web.Response(status=409 if fence < known else 200, text="known already")
        self._remember(request.headers["webhook-id"], fence)
        return web.Response(text="thank you")

    def _remember(self, message_id: str, fence: int) -> None:
        self._fences[message_id] = fence
        if len(self._fences) > REMEMBERED_MAX:
            del self._fences[next(iter(self._fences))]


async def _serve() -> None:
    receiver = Receiver()
    app = web.Application(client_max_size=BODY_BYTES_MAX)
    app.router.add_post("/callback", receiver.take)
    add_couriers(app)
    add_providers(app)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    loop = asyncio.get_running_loop()
    secret = await loop.run_in_executor(None, sys.stdin.readline)
    if secret:
        receiver.webhook = Webhook(secret.strip())
        await loop.run_in_executor(None, _read_to_the_end, sys.stdin)
    await runner.cleanup()


def _read_to_the_end(stream: Any) -> None:
    while stream.read(1024):
        pass


if __name__ == "__main__":
    asyncio.run(_serve())
