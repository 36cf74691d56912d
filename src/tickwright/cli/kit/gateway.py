"""How a command reaches Tickwright: through the API if its URL is set, otherwise through the database.

Both ways use the same requests and answers. Without ``TICKWRIGHT_API_URL`` the same API runs inside this process, on
the database. The user of the operating system is then an admin, because the password of the database grants everything
anyway.
"""

import asyncio
import getpass
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from tickwright.domain.errors import Contended, InvariantBroken, Rejected, TickwrightError, Unavailable
from tickwright.ports.caller import Caller, Role

if TYPE_CHECKING:
    import aiohttp

    from tickwright.plugin.settings import Settings


# A signed link grants access by itself, so no key is sent.

IDLE_S = 120
CONNECT_S = 10
Take = Callable[[bytes], Awaitable[None]]


async def fetch_url(url: str, take: Take) -> tuple[int, bytes]:
    """Pass the content of a link to ``take`` in pieces; return the status and, for an error, the body.

    Raises ``Unavailable`` (``download_broken``) if there is no answer, or it is incomplete: retry.
    """
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=IDLE_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            if answer.status != 200:
                return answer.status, await answer.read()
            async for piece in answer.content.iter_any():
                await take(piece)
            return answer.status, b""
    except (aiohttp.ClientError, TimeoutError) as error:
        reason = str(error) or type(error).__name__
        raise Unavailable("download_broken", f"the download broke off: {reason}; try again") from error


T = TypeVar("T")
TIMEOUT_S = 120
Body = bytes | AsyncIterator[bytes] | None
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_DOTS = frozenset({".", ".."})
_CHUNKED = (b"transfer-encoding", b"chunked")


class Gateway:
    """Sends requests of the REST API and returns the answers."""

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any],
        body: Body,
        content_type: str,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> tuple[int, bytes]:
        """Send one request; return the status and the body."""
        raise NotImplementedError

    async def fetch(self, url: str, take: Take) -> tuple[int, bytes]:
        """Pass the body of a signed link to ``take`` in pieces; return the status and, for an error, the body.

        ``url`` is a full URL, or a path of the API. No key is sent, because the link grants access. Raises
        ``Unavailable`` (``download_broken``): retry.
        """
        return await fetch_url(url, take)

    async def ask(self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        """Send ``body`` as JSON and return the JSON of the answer.

        Raises:
            Rejected: ``wrong_argument``: a name is ``.`` or ``..``, which would be another path. Permanent.
            TickwrightError: The API's error, with its code.
        """
        if not _DOTS.isdisjoint(path.split("/")):
            raise Rejected("wrong_argument", "a name cannot be . or ..")
        given = {name: value for name, value in (query or {}).items() if value not in (None, [], ())}
        raw = None if body is None else msgspec.json.encode(body)
        status, answer = await self.send(method, f"/v1{path}", query=given, body=raw, content_type="application/json")
        return read_answer(status, answer)


def api_path(collection: str, argument: str, name: str) -> str:
    """Return the path of one thing, of which ``argument`` of the command is the name.

    Raises:
        Rejected: ``wrong_argument``: without a name, or with a slash, it would be another path. Permanent.
    """
    if not name or "/" in name:
        raise Rejected("wrong_argument", f"{argument}: at least one character, and no '/'")
    return f"/{collection}/{quote(name, safe='')}"


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that have a value, for the body of a request."""
    return {name: value for name, value in fields.items() if value is not None}


def json_of(name: str, text: str) -> Any:
    """Return the JSON of an argument or option. Raises ``Rejected`` (``wrong_argument``): permanent."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise Rejected("wrong_argument", f"{name} is not JSON: {error}") from None


def named_values(option: str, words: Sequence[str]) -> dict[str, Any]:
    """Parse ``name=text`` and ``name:=json``. Raises ``Rejected`` (``wrong_argument``): permanent."""
    found: dict[str, Any] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name.strip(":"):
            raise Rejected("wrong_argument", f"{option} {word}: write NAME=TEXT, or NAME:=JSON")
        if not name.endswith(":"):
            found[name] = value
            continue
        try:
            found[name[:-1]] = json.loads(value)
        except ValueError as error:
            raise Rejected("wrong_argument", f"{option} {name[:-1]}: not JSON: {error}") from None
    return found


async def put_changes(
    gateway: Gateway, path: str, changes: Mapping[str, Any], *, keep: Sequence[str], need: str
) -> Any:
    """Replace a thing: its present fields of ``keep``, and the changes. A new one needs the change ``need``.

    Raises ``Rejected`` (``wrong_argument``) if it is new and ``need`` is missing: permanent.
    """
    try:
        present = await gateway.ask("GET", path)
    except Rejected as error:
        if not error.code.endswith("_not_found"):
            raise
        if need and need not in changes:
            raise Rejected("wrong_argument", f"{path.rpartition('/')[2]} is new: give its --{need}") from None
        present = {}
    return await gateway.ask("PUT", path, body={**{key: present[key] for key in keep if key in present}, **changes})


def read_answer(status: int, answer: bytes) -> Any:
    """Return the JSON of an answer, or raise its error."""
    try:
        value = msgspec.json.decode(answer) if answer else None
    except msgspec.DecodeError:
        says = f"what answers there is not Tickwright's API (status {status}); check TICKWRIGHT_API_URL"
        raise Unavailable("not_our_api", says) from None
    if status < 400:
        return value
    problem = value if isinstance(value, dict) else {}
    raise _error(status, problem)


def _error(status: int, problem: Mapping[str, Any]) -> TickwrightError:
    code = str(problem.get("code", f"http_{status}"))
    message = str(problem.get("detail") or problem.get("title") or f"the API answered {status}")
    known = {"code", "detail", "title", "status", "type", "instance", "message", "retriable"}
    details = {name: value for name, value in problem.items() if name not in known and name.isidentifier()}
    if status in {409, 429} and problem.get("retriable"):
        return Contended(code, message, **details)
    if status in {502, 503, 504}:
        return Unavailable(code, message, **details)
    if status >= 500:
        return InvariantBroken(code, message, **details)
    return Rejected(code, message, status=status, **details)


class HttpGateway(Gateway):
    """The API of another process, by HTTP."""

    def __init__(self, session: "aiohttp.ClientSession", url: str) -> None:
        self._session, self._url = session, url.rstrip("/")

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any],
        body: Body,
        content_type: str,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> tuple[int, bytes]:
        """Send one request."""
        import aiohttp

        address = f"{self._url}{path}" + (f"?{urlencode(query, doseq=True)}" if query else "")
        sent = {**headers, **({"Content-Type": content_type} if body is not None else {})}
        try:
            async with self._session.request(method, address, data=body, headers=sent, allow_redirects=False) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise Unavailable("api_unavailable", f"the API at {self._url} does not answer: {reason}") from error

    async def fetch(self, url: str, take: Take) -> tuple[int, bytes]:
        """Hand over the body of a signed link."""
        return await super().fetch(f"{self._url}{url}" if url.startswith("/") else url, take)


class LocalGateway(Gateway):
    """The API inside this process, called without a socket."""

    def __init__(self, app: Any, caller: Caller) -> None:
        self._app, self._caller = app, caller

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any],
        body: Body,
        content_type: str,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> tuple[int, bytes]:
        """Send one request."""
        sent = _raw_headers(headers, content_type, body)
        return await self._call(method, path, urlencode(query, doseq=True), sent, body)

    async def fetch(self, url: str, take: Take) -> tuple[int, bytes]:
        """Pass on the body of a signed link, which can be an external URL."""
        if not url.startswith("/"):
            return await super().fetch(url, take)
        path, _, query = url.partition("?")
        return await self._call("GET", path, query, _raw_headers({}, "", None), None, take)

    async def _call(
        self,
        method: str,
        path: str,
        query: str,
        headers: list[tuple[bytes, bytes]],
        body: Body,
        take: Take | None = None,
    ) -> tuple[int, bytes]:
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": headers, "client": None, "server": ("localhost", 80), "state": {},
            "tickwright.caller": self._caller,
        }  # fmt: skip
        answer: list[bytes] = []
        status = 0

        async def send(message: Mapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                piece = message.get("body", b"")
                if take is not None and status == 200:
                    await take(piece)
                else:
                    answer.append(piece)

        try:
            await self._app(scope, _receiver(body), send)
        except Exception as error:
            from tickwright.rest.problems import translate

            known = translate(error, of_a_change=method != "GET")
            if known is None:
                raise
            raise known from error
        return status, b"".join(answer)


def _raw_headers(headers: Mapping[str, str], content_type: str, body: Body) -> list[tuple[bytes, bytes]]:
    raw = [(b"host", b"localhost"), *((name.encode(), value.encode()) for name, value in headers.items())]
    if body is not None:
        raw.append((b"content-type", content_type.encode()))
        raw.append((b"content-length", str(len(body)).encode()) if isinstance(body, bytes) else _CHUNKED)
    return raw


def _receiver(body: Body) -> Callable[[], Awaitable[Mapping[str, Any]]]:
    """Return the ASGI callable that passes a request's body to an application, part by part."""
    parts = _parts(body)
    over = asyncio.Event()

    async def receive() -> Mapping[str, Any]:
        if over.is_set():
            await asyncio.Event().wait()  # the client never disconnects
        part = await anext(parts, None)
        if part is None:
            over.set()
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}

    return receive


async def _parts(body: Body) -> AsyncIterator[bytes]:
    if isinstance(body, bytes):
        yield body
    elif body is not None:
        async for part in body:
            yield part


@asynccontextmanager
async def open_gateway(settings: "Settings") -> AsyncIterator[Gateway]:
    """Open the gateway that the settings name."""
    if settings.api_url is not None:
        import aiohttp

        key = settings.api_key.get_secret_value() if settings.api_key else ""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=TIMEOUT_S)
        headers = {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
            yield HttpGateway(session, settings.api_url)
        return
    from tickwright.process.api import local_api

    async with local_api(settings) as app:
        yield LocalGateway(app, Caller(f"cli:{_user()}", Role.ADMIN))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def with_gateway(work: Callable[[Gateway], Awaitable[T]]) -> T:
    """Run ``work`` with a gateway, then close the gateway."""
    from tickwright.process.settings import load_settings

    async def whole() -> T:
        async with open_gateway(load_settings()) as gateway:
            return await work(gateway)

    return asyncio.run(whole())


def ask(method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None) -> Any:
    """Send one request and return the JSON of the answer."""
    return with_gateway(lambda gateway: gateway.ask(method, path, query=query, body=body))
