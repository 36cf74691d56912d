"""A receiver of HTTP callbacks: what it should check, in sixty lines.

It verifies the signature (Standard Webhooks), takes each message once, and refuses an attempt that is
older than one it has seen. Delivery is at least once: the same `webhook-id` may come again, after a
timeout for example, and a rising `tickwright-fence` says which attempt is the newest.

    python examples/callback_receiver.py whsec_… [PORT]

This one is for demonstrations on loopback and has no deadlines for slow clients; do not expose it.
A real receiver keeps what it has seen in the database in which the effect happens, in the same transaction.
"""

import sys

from aiohttp import web
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

BODY_BYTES_MAX = 65_536


class Receiver:
    """Takes callbacks; `done` has each message's fence and payload once."""

    def __init__(self, secret: str) -> None:
        self.webhook = Webhook(secret)
        self.fences: dict[str, int] = {}
        self.done: dict[str, bytes] = {}

    async def take(self, request: web.Request) -> web.Response:
        """Answer 200 when the work is done, now or earlier; anything else is tried again."""
        body = await request.read()
        try:
            self.webhook.verify(body, dict(request.headers))  # also refuses what is older than five minutes
        except WebhookVerificationError:
            return web.Response(status=401, text="the signature is wrong")
        message_id, fence = request.headers["webhook-id"], int(request.headers["tickwright-fence"])
        if fence < self.fences.get(message_id, 0):
            return web.Response(status=409, text="a newer attempt is under way")
        self.fences[message_id] = fence
        if message_id in self.done:
            return web.Response(text="done already")
        self.done[message_id] = body  # here: the effect
        print(f"{request.headers['tickwright-task-type']} {message_id} attempt {request.headers['tickwright-attempt']}")
        return web.Response(text="done")


def make_app(receiver: Receiver) -> web.Application:
    """Return the server's application."""
    app = web.Application(client_max_size=BODY_BYTES_MAX)
    app.router.add_post("/callback", receiver.take)
    return app


if __name__ == "__main__":
    web.run_app(make_app(Receiver(sys.argv[1])), host="127.0.0.1", port=int(sys.argv[2]) if len(sys.argv) > 2 else 8500)
