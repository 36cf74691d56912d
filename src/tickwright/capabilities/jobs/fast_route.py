"""``POST /v1/jobs`` without the framework, whose work per request would exceed that of the insert.

The checks, responses and errors are those of the route: both use the same functions, and a test compares them.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from tickwright.capabilities.jobs.admin.service import JobService
from tickwright.capabilities.jobs.requests import key_of
from tickwright.capabilities.jobs.rest import SCOPE, created_answer
from tickwright.domain.errors import Rejected
from tickwright.domain.strict_json import shown
from tickwright.domain.traceparent import traceparent_of
from tickwright.observe import traces
from tickwright.ports.caller import Role
from tickwright.rest.gate import Gate
from tickwright.rest.problems import SAFE_HEADERS

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
PATH = "/v1/jobs"
_HEADERS = [(b"content-type", b"application/json"), *SAFE_HEADERS]


async def post_job(service: JobService, gate: Gate, scope: MutableMapping[str, Any], receive: Any, send: Send) -> None:
    """Schedule one job for the scope's caller and respond; the API turns an error into a problem document."""
    gate.check_role(scope, Role.OPERATOR, SCOPE)
    if scope["query_string"]:
        name = scope["query_string"].decode("latin-1").partition("=")[0]
        raise Rejected("unknown_parameter", f"no parameter {shown(name)}; known: none here", status=400)
    body, headers = await gate.read_raw(scope, receive), scope["headers"]
    with traces.continued(traceparent_of(headers)):
        made = await service.schedule_text(body, key=key_of(headers), now=gate.now())
    status, location, text = created_answer(made.id, created=made.created)
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*_HEADERS, (b"location", location.encode()), (b"content-length", str(len(text)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": text})
