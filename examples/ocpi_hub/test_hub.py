"""Tests of the hub: the pages of a provider, fetched from a server of the test."""

from aiohttp import ClientSession, web
from hub import fetch


async def test_pages_are_followed_to_the_last_one() -> None:
    """The header ``Link`` names the next page; the date of the last run goes with the first one only."""
    asked = []

    async def pages(request: web.Request) -> web.Response:
        asked.append(request.query_string)
        number = int(request.query.get("offset", 0))
        url = request.url.with_query(offset=number + 1)
        headers = {"Link": f'<{url}>; rel="next"'} if number < 2 else {}
        return web.json_response({"data": [number]}, headers=headers)

    application = web.Application()
    application.router.add_get("/locations", pages)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    async with ClientSession() as session:
        assert await fetch(session, f"http://{host}:{port}/locations", None) == [0, 1, 2]
    await runner.cleanup()
    assert asked == ["", "offset=1", "offset=2"]
