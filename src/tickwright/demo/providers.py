"""Four providers of the example's hub, one of them slow. They run in the receiver's process.

The slow one takes as long for an answer as the others together would for fifty.
"""

import asyncio
import hmac
import os
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TOKEN_VARIABLE = "TICKWRIGHT_SECRET_EXAMPLE_HUB_TOKEN"  # noqa: S105  the variable's name
TOKEN_HOSTS = "TICKWRIGHT_SECRET_HOSTS_EXAMPLE_HUB_TOKEN"  # noqa: S105  the variable's name
PROVIDERS: Mapping[str, float] = {"DE.SLO": 5.0, "NL.ONE": 0.1, "NL.TWO": 0.1, "NL.TRE": 0.1}
"""How many seconds each takes."""


async def _answer(request: Request) -> Response:
    """Answer ``GET /hub/{code}/locations?date_from=``: nothing is new."""
    shown, wanted = request.headers.get("authorization", ""), f"Token {os.environ.get(TOKEN_VARIABLE, '')}"
    if not hmac.compare_digest(shown.encode(), wanted.encode()):
        return JSONResponse({"status_code": 2001, "status_message": "wrong token"}, 401)
    seconds = PROVIDERS.get(request.path_params["code"])
    if seconds is None:
        return JSONResponse({"status_code": 2003, "status_message": "no such provider"}, 404)
    await asyncio.sleep(seconds)
    return JSONResponse({"data": [], "status_code": 1000})


def provider_routes() -> list[Route]:
    """Return what lets the receiver's server answer as providers, too."""
    return [Route("/hub/{code}/locations", _answer)]
