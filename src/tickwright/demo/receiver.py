"""The receiver of the example's callbacks: a small server that trusts only the signature.

Runs as a process of its own (``python -m tickwright.demo.receiver``). It prints its port to standard output, reads its
secret from standard input, and ends when that is closed, so it cannot outlive ``up``, even if that is killed. Its
connections have the bounds of every listener of Tickwright.
"""

import asyncio
import hmac
import os
import sys
from collections import Counter
from collections.abc import Mapping
from time import monotonic
from typing import Any
from zlib import crc32

from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tickwright.rest.admission import ListenerLimits
from tickwright.rest.listener import Listener, bind

SLOW_S = 0.4
STRICT_PER_S = 25
STRICT_CALLS, SILENCE_S = 200, 2
"""The strict courier requests a pause above its limit and after this many calls, like a courier under load."""

FAILS_S, EVERY_S = 30.0, 120.0
STATIONS = ("accepted", "in_transit", "at_depot", "out_for_delivery")
POLLS_MAX = 40
SHIPMENTS_REMEMBERED_MAX = 100_000


class Couriers:
    """Answers ``GET /couriers/{name}/{shipment}``. Each shipment passes a few stations until it is delivered.

    One courier is slow, one sometimes requests a pause, one fails for a while.
    """

    def __init__(self) -> None:
        self._polls: Counter[str] = Counter()
        self._second, self._calls = 0, 0
        self._left, self._silent_until_s = STRICT_CALLS, 0.0
        self._started_s = monotonic()

    async def answer(self, request: Request) -> Response:
        """Answer one poll as the named courier."""
        name, shipment = request.path_params["name"], request.path_params["shipment"]
        if name == "strict" and self._too_many():
            return PlainTextResponse("slow down", 429, headers={"Retry-After": str(SILENCE_S)})
        if name == "moody" and (monotonic() - self._started_s) % EVERY_S > EVERY_S - FAILS_S:
            return PlainTextResponse("out of order", 503)
        if name == "slow":
            await asyncio.sleep(SLOW_S)
        return JSONResponse({"shipment": shipment, "status": self._status(f"{name}/{shipment}")})

    def _too_many(self) -> bool:
        second = int(monotonic())
        self._calls = self._calls + 1 if second == self._second else 1
        self._second = second
        self._left -= 1
        if self._left < 0 or self._calls > STRICT_PER_S:
            self._left, self._silent_until_s = STRICT_CALLS, monotonic() + SILENCE_S
        return monotonic() < self._silent_until_s

    def _status(self, key: str) -> str:
        if len(self._polls) >= SHIPMENTS_REMEMBERED_MAX:
            self._polls.clear()
        self._polls[key] += 1
        until = 5 + crc32(key.encode()) % POLLS_MAX
        polls = self._polls[key]
        return "Delivered" if polls >= until else STATIONS[polls * len(STATIONS) // until]


TOKEN_VARIABLE = "TICKWRIGHT_SECRET_EXAMPLE_HUB_TOKEN"  # noqa: S105  the variable's name
TOKEN_HOSTS = "TICKWRIGHT_SECRET_HOSTS_EXAMPLE_HUB_TOKEN"  # noqa: S105  the variable's name
PROVIDERS: Mapping[str, float] = {"DE.SLO": 5.0, "NL.ONE": 0.1, "NL.TWO": 0.1, "NL.TRE": 0.1}
"""The providers of the hub, with the seconds that each takes for an answer."""


async def _answer_hub(request: Request) -> Response:
    """Answer ``GET /hub/{code}/locations?date_from=`` without any changes."""
    shown, wanted = request.headers.get("authorization", ""), f"Token {os.environ.get(TOKEN_VARIABLE, '')}"
    if not hmac.compare_digest(shown.encode(), wanted.encode()):
        return JSONResponse({"status_code": 2001, "status_message": "wrong token"}, 401)
    seconds = PROVIDERS.get(request.path_params["code"])
    if seconds is None:
        return JSONResponse({"status_code": 2003, "status_message": "no such provider"}, 404)
    await asyncio.sleep(seconds)
    return JSONResponse({"data": [], "status_code": 1000})


BODY_BYTES_MAX = 65_536
BODY_S = 10.0
LIMITS = ListenerLimits(connections=1024, per_address=1024)
"""Only this machine can reach it."""
REMEMBERED_MAX = 10_000


class Receiver:
    """Verifies callbacks, refuses old fences, and accepts each message once."""

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
        message_id = request.headers["webhook-id"]
        accepted = self._fences.get(message_id)
        if accepted is not None:
            return PlainTextResponse("known already", 409 if fence < accepted else 200)
        self._fences[message_id] = fence
        if len(self._fences) > REMEMBERED_MAX:
            del self._fences[next(iter(self._fences))]
        return PlainTextResponse("thank you")


async def _read(request: Request) -> bytes | Response:
    """Return a body, or a refusal if it is too large or does not end in time."""
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
    """Return the server of a receiver, which also serves the couriers and providers."""
    routes = [
        Route("/callback", receiver.take, methods=["POST"]),
        Route("/couriers/{name}/{shipment}", Couriers().answer),
        Route("/hub/{code}/locations", _answer_hub),
    ]
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
