"""The REST API as one ASGI application.

Every request first passes authentication, before any routing, so that no route can miss it; only the open paths and
signed links need no key. One place turns errors into answers. Behind that are the plugins' routes without a framework,
and FastAPI with all other routes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import msgspec
import structlog
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from tickwright.api.auth import COOKIE_SHOWN, Authenticator, caller_of
from tickwright.api.context import ApiContext, Readiness
from tickwright.api.cookies import SAFE_METHODS, over_tls, signed_out
from tickwright.api.gate import ApiGate, ClientGone, Receive
from tickwright.api.openapi import OPEN_PATHS, any_of, document, is_endless, is_of_many, needs_no_key
from tickwright.api.sessions import session_routes
from tickwright.domain.admission import client_of
from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.observe.metrics import METRICS_TYPE
from tickwright.ports.caller import CALLER, Role
from tickwright.ports.views import set_sight
from tickwright.rest.listener import TRANSPORT
from tickwright.rest.problems import SAFE_HEADERS, of_status, problem, translate, unexpected
from tickwright.rest.routing import answer, answers
from tickwright.store.bounds import Abandoned, TookTooLong, on_behalf_of, outcome_unknown, within

_log = structlog.get_logger("tickwright.api")
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Scope = MutableMapping[str, Any]


class Api:
    """The ASGI application; see the module."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._auth = Authenticator(context.pool, context.limits)
        gate = ApiGate(self._auth, context.limits)
        self._fast = {
            path: answering
            for plugin in context.plugins
            for path, answering in plugin.fast_routes(context.plugin_context, gate).items()
        }
        self._long_routes = any_of(route for plugin in context.plugins for route in plugin.long_routes)
        self._endless_routes = any_of(route for plugin in context.plugins for route in plugin.endless_routes)
        self.framework = _framework(context, self._auth, gate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self.framework(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._answer(scope, receive, _Guarded(send))

    async def _answer(self, scope: Scope, receive: Receive, send: "_Guarded") -> None:
        try:
            fast = self._fast.get(scope["path"])
            if fast is not None and scope["method"] == "POST":
                with self._changing():
                    await self._authenticate(scope)
                    with _counted(scope):
                        await fast(scope, receive, send.send_unchanged)
                return
            await self._route(scope, receive, send)
        except (ClientGone, Abandoned):
            _log.info("api.client_gone", path=scope["path"][:100])
        except Exception as error:  # noqa: BLE001  the boundary of a request: the error becomes an answer
            await _answer_error(error, scope, send, self._context.cookie_path)

    async def _route(self, scope: Scope, receive: Receive, send: "_Guarded") -> None:
        if "\0" in scope["path"]:
            raise of_status(404, "there is nothing at this path")
        if needs_no_key(scope["method"], scope["path"]):
            set_sight(allowed=True, whole=False)
        else:
            await self._authenticate(scope)
        with self._bounds(scope["method"], scope["path"]), _counted(scope):
            await self.framework(scope, receive, send)

    async def _authenticate(self, scope: Scope) -> None:
        """Authenticate the caller, and set what it sees."""
        caller = scope[CALLER] = await caller_of(self._auth, scope)
        set_sight(allowed=caller.rank >= self._context.payloads_from, whole=caller.rank >= Role.OPERATOR)

    def _bounds(self, method: str, path: str) -> AbstractContextManager[Any]:
        if method not in SAFE_METHODS:
            return nullcontext() if is_of_many(path) or self._long_routes.fullmatch(path) else self._changing()
        if is_endless(path) or self._endless_routes.fullmatch(path):
            return nullcontext()
        return within(self._context.limits.read_timeout.total_seconds())

    @contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            with within(self._context.limits.change_timeout.total_seconds()) as bound:
                bound.again()  # the body is read first
                yield
        except TookTooLong as error:
            raise outcome_unknown() from error


def _counted(scope: Scope) -> AbstractContextManager[None]:
    """Count a request's connections for its key, or for its address without one; sessions count for their key."""
    if scope["path"] in OPEN_PATHS:
        return nullcontext()
    caller, transport = scope.get(CALLER), scope.get(TRANSPORT)
    if caller is None:
        caller_name = f"address:{client_of((scope.get('client') or ('',))[0])}"
    else:
        caller_name = caller.name if caller.key_id is None else f"key:{caller.key_id}"
    return on_behalf_of(caller_name) if transport is None else on_behalf_of(caller_name, transport.is_closing)


class _Guarded:
    """``send`` with the headers of every answer; records whether an answer has begun."""

    __slots__ = ("_send", "begun")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            self.begun = True
            names = {name for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(pair for pair in SAFE_HEADERS if pair[0] not in names)]
        await self._send(message)

    async def send_unchanged(self, message: MutableMapping[str, Any]) -> None:
        """Pass on an answer that already has all headers."""
        self.begun = True
        await self._send(message)


async def _answer_error(error: Exception, scope: Scope, send: _Guarded, cookie_path: str) -> None:
    ours = translate(error, of_a_change=scope["method"] not in SAFE_METHODS)
    if isinstance(ours, Unavailable):  # expected; a stack trace would not help
        _log.warning("api.unavailable", code=ours.code, path=scope["path"][:100], error=repr(error)[:500])
    elif ours is None or ours.http_status >= 500:
        _log.error("api.failed", path=scope["path"][:100], method=scope["method"], exc_info=error)
    if send.begun:
        raise error
    status, headers, body = problem(ours or unexpected())
    if status == 401 and COOKIE_SHOWN in scope:  # the cookie is invalid: delete it
        cleared = signed_out(cookie_path, secure=over_tls(scope["headers"], scope["scheme"]))
        headers.append((cleared[0].encode(), cleared[1].encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def create_app(context: ApiContext) -> Api:
    """Return the API as an ASGI application; ``context`` must outlive it."""
    return Api(context)


class _Framework(FastAPI):
    """FastAPI without its outermost layer, which would answer an error in plain text before ``Api`` sees it."""

    def build_middleware_stack(self) -> ASGIApp:
        """Return the stack below that layer."""
        whole = super().build_middleware_stack()
        return whole.app if isinstance(whole, ServerErrorMiddleware) else whole


def _framework(context: ApiContext, auth: Authenticator, gate: ApiGate) -> FastAPI:
    app = _Framework(
        title="Tickwright",
        version=context.version,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            TickwrightError: _as_problem,
            HTTPException: _as_problem,
            RequestValidationError: _as_problem,
        },
    )
    routers = [_open_routes(context.readiness, context.metrics), session_routes(context, auth, gate)]
    for plugin in context.plugins:
        routers += plugin.routes(context.plugin_context, gate)
    for router in routers:
        app.include_router(router)

    building = asyncio.Lock()
    encoded = b""

    @app.get("/v1/openapi.json", tags=["process"], responses={200: {"content": {"application/json": {}}}})
    async def openapi() -> Response:
        """Return this document."""
        nonlocal encoded
        async with building:  # building is slow, and runs once
            if not encoded:  # shared, because clients without a key may request it often
                encoded = msgspec.json.encode(await asyncio.to_thread(document, app, routers))
        return Response(encoded, media_type="application/json")

    return app


class HealthView(msgspec.Struct):
    """The process answers."""

    status: str


class ReadyView(msgspec.Struct):
    """Whether the process can work, and the result of each check."""

    ready: bool
    checks: dict[str, str]


def _open_routes(readiness: Callable[[], Awaitable[Readiness]], metrics: Callable[[], bytes]) -> APIRouter:
    """Return the routes without a key: liveness, readiness and metrics of the process."""
    router = APIRouter(tags=["process"])

    @router.get("/healthz", **answers(HealthView))
    async def healthz() -> Response:
        """Show that the process answers."""
        return answer(HealthView("ok"))

    @router.get("/readyz", **answers(ReadyView, 200, 503))
    async def readyz() -> Response:
        """Show whether the database answers and the loops run; 503 if not."""
        state = await readiness()
        return answer(ReadyView(state.ready, dict(state.checks)), 200 if state.ready else 503)

    @router.get("/metrics", responses={200: {"description": "Prometheus", "content": {"text/plain": {}}}})
    async def show_metrics() -> Response:
        """Return the counters of this process as Prometheus text."""
        return Response(metrics(), media_type=METRICS_TYPE)

    return router


async def _as_problem(request: Request, error: Exception) -> Response:
    status, headers, body = problem(_as_ours(request, error))
    made = Response(body, status)
    made.raw_headers = headers
    return made


def _methods(request: Request) -> str:
    """Return all methods of the path; the framework's own answer has only those of the first route."""
    matching = (route for route in _routes(request.app) if route.matches(request.scope)[0] is not Match.NONE)
    return ", ".join(sorted({method for route in matching for method in route.methods or ()}))


def _routes(router: Any) -> Iterator[Route]:
    """Yield every route, including those of included routers, which the framework keeps nested."""
    for route in router.routes:
        if isinstance(route, Route):
            yield route
        elif (inner := getattr(route, "original_router", None)) is not None:
            yield from _routes(inner)


def _as_ours(request: Request, error: Exception) -> TickwrightError:
    match error:
        case TickwrightError():
            return error
        case RequestValidationError():
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            return Rejected("invalid_parameter", f"{where}: {first['msg']}", field=str(first["loc"][:2][-1]))
        case HTTPException(status_code=404):
            return of_status(404, "there is nothing at this path")
        case HTTPException(status_code=405):
            allow = _methods(request) or (error.headers or {}).get("Allow", "")
            return of_status(
                405, f"this path answers to {allow or 'other methods'}", headers=[(b"allow", allow.encode())]
            )
        case HTTPException():
            return of_status(error.status_code, str(error.detail))
        case _:
            return unexpected()
