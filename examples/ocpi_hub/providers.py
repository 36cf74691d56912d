"""Four charge point operators of the example, each a path of one small server: locations by date, in pages, as OCPI."""

import asyncio
import hmac
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

TOKEN = "OCPI_HUB_TOKEN"
TOKEN_VARIABLE, TOKEN_HOSTS = f"TICKWRIGHT_SECRET_{TOKEN}", f"TICKWRIGHT_SECRET_HOSTS_{TOKEN}"
PROVIDERS = {"DE.SLO": 5.0, "NL.ONE": 0.1, "NL.TWO": 0.1, "NL.TRE": 0.1}
LOCATIONS, PAGE = 5, 2


class Provider:
    """One operator; it takes `seconds` to find what was asked for, and none to turn a page."""

    def __init__(self, code: str, seconds: float) -> None:
        self._seconds = seconds
        now = datetime.now(UTC)
        self._locations: list[dict[str, Any]] = [
            {"id": f"{code}-{n}", "last_updated": (now - timedelta(days=n)).isoformat()} for n in range(LOCATIONS)
        ]

    async def answer(self, request: web.Request) -> web.Response:
        """Answer `GET …/locations?date_from=&offset=&limit=`."""
        wanted = f"Token {os.environ[TOKEN_VARIABLE]}"
        if not hmac.compare_digest(request.headers.get("authorization", ""), wanted):
            return web.json_response({"status_code": 2001, "status_message": "wrong token"}, status=401)
        offset, limit = int(request.query.get("offset", "0")), int(request.query.get("limit", str(PAGE)))
        if not offset:
            await asyncio.sleep(self._seconds)
        since = request.query.get("date_from", "")
        found = [one for one in self._locations if one["last_updated"] >= since]
        headers = {"X-Total-Count": str(len(found)), "X-Limit": str(PAGE)}
        if offset + limit < len(found):
            following = request.url.update_query(offset=offset + limit, limit=limit)
            headers["Link"] = f'<{following}>; rel="next"'
        return web.json_response({"data": found[offset : offset + limit], "status_code": 1000}, headers=headers)


@asynccontextmanager
async def serve(providers: Mapping[str, float]) -> AsyncIterator[dict[str, str]]:
    """Serve them at `PROVIDERS_PORT` of loopback, or at a free one; give where each one's locations are."""
    server = web.Application()
    for code, seconds in providers.items():
        server.router.add_get(f"/{code}/locations", Provider(code, seconds).answer)
    runner = web.AppRunner(server)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", int(os.environ.get("PROVIDERS_PORT", "0"))).start()
        port = runner.addresses[0][1]
        yield {code: f"http://127.0.0.1:{port}/{code}/locations" for code in providers}
    finally:
        await runner.cleanup()


async def main() -> None:
    """Serve them until this is stopped."""
    async with serve(PROVIDERS) as addresses:
        print(*addresses.values(), sep="\n", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
