"""The REST routes of remote workers, ``/v1/worker/…``; docs/worker-protocol.md has the protocol.

The calls of a registered worker do not use the framework, whose work per request is large beside theirs. The routes of
the framework have the same checks, answers and errors, and document them.
"""

import asyncio
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from tickwright.capabilities.jobs.remote.messages import (
    BODY_BYTES_MAX,
    SESSION_HEADER,
    RemoteCallList,
    RemoteRegistered,
    RemoteRegistration,
)
from tickwright.capabilities.jobs.remote.workers import CALLS, RemoteCall, RemoteWorkers
from tickwright.domain.errors import Rejected
from tickwright.domain.strict_json import quoted
from tickwright.plugin.contract import FastRoute
from tickwright.ports.caller import Caller, Role
from tickwright.rest.gate import Gate
from tickwright.rest.problems import SAFE_HEADERS
from tickwright.rest.routing import accepts, answer, answers
from tickwright.store.bounds import Abandoned

SCOPE = "jobs:work"
PATH = "/v1/worker"
_BODIES_MAX = {"results": BODY_BYTES_MAX}
_HEADERS = [(b"content-type", b"application/json"), *SAFE_HEADERS]
_SESSION = {
    "name": SESSION_HEADER,
    "in": "header",
    "description": "`session` of the registration",
    "schema": {"type": "string", "minLength": 1, "maxLength": 100},
}


def worker_routes(workers: RemoteWorkers, gate: Gate) -> APIRouter:
    """Return the routes of remote workers."""
    router = APIRouter(tags=["remote workers"])
    works = Annotated[Caller, Depends(gate.allow(Role.OPERATOR, SCOPE))]

    @router.post(f"{PATH}/register", **answers(RemoteRegistered, 201), **accepts(RemoteRegistration))
    async def register_worker(request: Request, caller: works) -> Response:
        """Open the session of a remote worker. Its secret is shown only in this response."""
        return answer(await workers.register(await gate.read_bytes(request), caller), 201)

    @router.get("/v1/remote-calls", dependencies=[Depends(gate.allow(Role.OPERATOR))], **answers(RemoteCallList))
    async def list_remote_calls() -> Response:
        """List polls, tasks and chunks that consumers have handed over: by whom each is made, and how far it is."""
        return answer(await workers.calls())

    for name, call in CALLS.items():
        _add(router, workers, gate, name, call)
    return router


def _add(router: APIRouter, workers: RemoteWorkers, gate: Gate, name: str, call: RemoteCall) -> None:
    body = accepts(call.body)
    documented: dict[str, Any] = {"openapi_extra": {**body["openapi_extra"], "parameters": [_SESSION]}}

    @router.post(
        f"{PATH}/{name}",
        name=f"worker_{name}",
        description=call.call.__doc__,
        dependencies=[Depends(gate.allow(Role.OPERATOR, SCOPE))],
        **answers(call.answer),
        **documented,
    )
    async def respond(request: Request) -> Response:
        body = await gate.read_bytes(request, _BODIES_MAX.get(name))
        return answer(await workers.answer(name, body, request.scope["headers"]))


def fast_worker_routes(workers: RemoteWorkers, gate: Gate) -> Mapping[str, FastRoute]:
    """Return the calls of registered workers by their paths, without the framework."""
    return {f"{PATH}/{name}": partial(_respond, workers, gate, name) for name in CALLS}


async def _respond(  # noqa: PLR0917  the last three are of ASGI
    workers: RemoteWorkers, gate: Gate, name: str, scope: MutableMapping[str, Any], receive: Any, send: Any
) -> None:
    gate.check_role(scope, Role.OPERATOR, SCOPE)
    if scope["query_string"]:
        parameter = scope["query_string"].decode("latin-1").partition("=")[0]
        raise Rejected("unknown_parameter", f"no parameter {quoted(parameter)}; known: none here", status=400)
    body = await gate.read_raw(scope, receive, _BODIES_MAX.get(name))
    call = workers.answer(name, body, scope["headers"])
    text = msgspec.json.encode(await (_while_connected(call, receive) if name == "claim" else call))
    head = [*_HEADERS, (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": text})


async def _while_connected(call: Any, receive: Any) -> Any:
    """Return the answer of a call, or cancel it when its client leaves."""
    answering, gone = asyncio.ensure_future(call), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait([answering, gone], return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            answering.cancel()
            with suppress(asyncio.CancelledError):
                await answering
            raise Abandoned
        return answering.result()
    finally:
        answering.cancel()
        gone.cancel()


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
