"""Three couriers of the example: a slow one, one that asks for silence now and then, and one that fails for a while.

They run in the receiver's process. Each shipment goes through a few stations and is delivered after some polls.
"""

import asyncio
from collections import Counter
from time import monotonic
from zlib import crc32

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

SLOW_S = 0.4
STRICT_PER_S = 25
STRICT_CALLS, SILENCE_S = 200, 2
"""The strict one asks for silence above its limit, and after each so many calls: as a courier under load does."""

FAILS_S, EVERY_S = 30.0, 120.0
STATIONS = ("accepted", "in_transit", "at_depot", "out_for_delivery")
POLLS_MAX = 40
REMEMBERED_MAX = 100_000


class Couriers:
    """Answers ``GET /couriers/{name}/{shipment}``."""

    def __init__(self) -> None:
        self._polls: Counter[str] = Counter()
        self._second, self._calls = 0, 0
        self._left, self._silent_until_s = STRICT_CALLS, 0.0
        self._started_s = monotonic()

    async def answer(self, request: Request) -> Response:
        """Answer one poll as the courier of this name does."""
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
        if len(self._polls) >= REMEMBERED_MAX:
            self._polls.clear()
        self._polls[key] += 1
        until = 5 + crc32(key.encode()) % POLLS_MAX
        polls = self._polls[key]
        return "Delivered" if polls >= until else STATIONS[polls * len(STATIONS) // until]


def courier_routes() -> list[Route]:
    """Return what lets the receiver's server answer as couriers, too."""
    return [Route("/couriers/{name}/{shipment}", Couriers().answer)]
