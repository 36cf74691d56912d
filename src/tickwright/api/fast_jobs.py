"""The fast lane of ``POST /v1/jobs``: the same checks, answers and errors as the route, without the framework.

One request is one job here, so what a framework does per request would be most of the work. The lane
reads the body and the job by the functions that every route uses; a test holds both against each other.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from tickwright.api.auth import Authenticator
from tickwright.api.context import ApiContext
from tickwright.api.gate import check_role
from tickwright.capabilities.jobs.requests import key_of
from tickwright.capabilities.jobs.rest import SCOPE, created_answer
from tickwright.domain.errors import Rejected
from tickwright.domain.strict_json import shown
from tickwright.domain.traceparent import traceparent_of
from tickwright.observe import traces
from tickwright.ports.caller import CALLER, Role
from tickwright.rest.bodies import JSON_TYPES, Receive, check_type, read_body
from tickwright.rest.problems import SAFE_HEADERS

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
PATH = "/v1/jobs"
_HEADERS = [(b"content-type", b"application/json"), *SAFE_HEADERS]


async def post_job(
    context: ApiContext, auth: Authenticator, scope: MutableMapping[str, Any], receive: Receive, send: Send
) -> None:
    """Schedule one job of the scope's caller and answer; raises what the caller of the lane turns into a problem."""
    headers = scope["headers"]
    limits = context.limits
    check_role(scope[CALLER], Role.OPERATOR, SCOPE)
    if scope["query_string"]:
        name = scope["query_string"].decode("latin-1").partition("=")[0]
        raise Rejected("unknown_parameter", f"no parameter {shown(name)}; known: none here", status=400)
    body = await read_body(receive, check_type(headers, JSON_TYPES), limits.body_bytes_max, limits.body_timeout)
    with traces.continued(traceparent_of(headers)):
        made = await context.jobs.schedule_text(body, key=key_of(headers), now=auth.now(), bounds=limits.schedule)
    status, location, text = created_answer(made.id, created=made.created)
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                *_HEADERS,
                (b"location", location.encode()),
                (b"content-length", str(len(text)).encode()),
            ],
        }
    )
    await send({"type": "http.response.body", "body": text})
