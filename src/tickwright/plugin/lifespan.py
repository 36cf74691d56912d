"""What a program opens before its handlers run, and what runs around their attempts.

::

    @app.lifespan
    async def resources() -> AsyncIterator[dict[str, object]]:
        async with ClientSession() as http:
            yield {"http": http}

    @app.job("invoice.remind")
    async def remind(job: Job, invoice_id: int, http: ClientSession = resource()) -> None: ...

A process that runs the program's functions opens the lifespans in their order, after its database and before the first
attempt, and closes them after the last one. Handlers of every capability get the yielded values: a parameter with the
default ``resource()`` is filled in by its name, or by its type if one value alone has it. A missing resource ends the
start of the process, not the first attempt.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar, get_origin, get_type_hints

from tickwright.domain.errors import Rejected
from tickwright.ports.ids import monotonic

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Next = Callable[[], Awaitable[Any]]
Middleware = Callable[[Any, Next], Awaitable[Any]]
"""Takes the work (a job, poll, task, request or chunk) and a function that runs the rest of the attempt."""
Around = Callable[[Any, Next], Awaitable[Any]]
SLOW_S = 10.0
"""After how long, and how often from then on, the log names a lifespan that has not opened."""


@dataclass(frozen=True, slots=True)
class Resource:
    """The default of a parameter that the process fills in."""

    name: str | None = None

    def __getattr__(self, attribute: str) -> Any:
        raise AttributeError(f"{attribute}: the process fills in this resource; pass it where you call the function")


def resource(name: str | None = None) -> Any:
    """Mark a parameter that a process fills in from its lifespan.

    Args:
        name: Of the resource; by default that of the parameter, or the one whose value has the annotated type.
    """
    return Resource(name)


@dataclass(slots=True)
class _Filled:
    """A function with resources, and their values while the process runs."""

    function: Callable[..., Any]
    wanted: Mapping[str, Resource]
    values: dict[str, Any] = field(default_factory=dict)

    def call(self) -> Callable[..., Any]:
        """Return the function without these parameters; of the same kind, because registries check it."""
        function, values = self.function, self.values
        if inspect.isasyncgenfunction(function):

            @wraps(function)
            async def generate(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
                async with aclosing(function(*args, **{**values, **kwargs})) as items:
                    async for item in items:
                        yield item

            return generate
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def work(*args: Any, **kwargs: Any) -> Any:
                return await function(*args, **{**values, **kwargs})

            return work

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **{**values, **kwargs})

        return run

    def resolve(self, values: Mapping[str, Any], problems: list[str]) -> None:
        """Set the values; add every mistake to ``problems``."""
        hints = _hints(self.function)
        for parameter, wanted in self.wanted.items():
            names = _matching(parameter, wanted, hints.get(parameter), values)
            if len(names) == 1:
                self.values[parameter] = values[names[0]]
                continue
            where = f"{self.function.__qualname__}: {parameter}"
            if names:
                problems.append(f"{where}: {', '.join(sorted(names))} have its type; write resource(NAME)")
            else:
                there = ", ".join(sorted(values)) or "none"
                problems.append(f"{where}: no lifespan yields {wanted.name or parameter!r}; there are: {there}")


def _matching(parameter: str, wanted: Resource, annotation: Any, values: Mapping[str, Any]) -> Sequence[str]:
    name = wanted.name or parameter
    if name in values:
        return [name]
    kind = get_origin(annotation) or annotation
    if wanted.name is not None or not isinstance(kind, type) or kind is object:
        return []
    return [name for name, value in values.items() if isinstance(value, kind)]


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(function)
    except NameError:  # an annotation that only type checkers can read: its resource is found by name
        return {}


class Lifespan:
    """The lifespans, resources and middleware of one program."""

    def __init__(self) -> None:
        self._openers: list[Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]] = []
        self._middleware: list[Middleware] = []
        self._filled: list[_Filled] = []
        self._values: Mapping[str, Any] = {}

    def add(self, opener: Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]) -> None:
        """Add a context manager that yields resources; it takes the process's installation."""
        self._openers.append(opener)

    def add_middleware(self, middleware: Middleware) -> None:
        """Add what runs around attempts; the first one added is the outermost.

        Raises:
            Rejected: ``invalid_middleware``. Permanent.
        """
        if not inspect.iscoroutinefunction(middleware) or not _takes_two(middleware):
            text = f"{middleware.__qualname__}: write an 'async def' that takes the work and the rest of the attempt"
            raise Rejected("invalid_middleware", text)
        self._middleware.append(middleware)

    @property
    def around(self) -> Around | None:
        """What runs around attempts, or ``None`` without middleware."""
        return self._around if self._middleware else None

    def _around(self, work: Any, run: Next) -> Awaitable[Any]:
        for middleware in reversed(self._middleware):
            run = _enclosed(middleware, work, run)
        return run()

    def filled(self, function: F) -> F:
        """Return ``function`` with its resources filled in; itself if it has none."""
        parameters = inspect.signature(function).parameters
        wanted = {name: one.default for name, one in parameters.items() if isinstance(one.default, Resource)}
        if not wanted:
            return function
        filled = _Filled(function, wanted)
        self._filled.append(filled)

        return filled.call()  # type: ignore[return-value]

    def attempt(self, function: F) -> F:
        """Return an asynchronous function of one argument with its resources, and middleware around each call.

        Anything else is returned as it is: its registry refuses it.
        """
        if not inspect.iscoroutinefunction(function):
            return function
        filled = self.filled(function)

        @wraps(function)
        async def call(work: Any) -> Any:
            around = self.around
            return await (filled(work) if around is None else around(work, lambda: filled(work)))

        return call  # type: ignore[return-value]

    def is_wanted_by(self, function: Callable[..., Any]) -> bool:
        """Return whether a function has resources, or middleware may need what the lifespans open."""
        return bool(self._middleware) or any(filled.function is function for filled in self._filled)

    @asynccontextmanager
    async def opened(self, installation: Any) -> AsyncIterator[None]:
        """Open everything for a process; a lifespan ends normally, whatever stops the process.

        Raises:
            Rejected: ``invalid_resources``, ``resource_missing`` with every mistake. Permanent.
            Exception: What a lifespan of the program raises.
        """
        values: dict[str, Any] = {}
        async with AsyncExitStack() as stack:
            for opener in self._openers:
                opened = await stack.enter_async_context(opener(installation))
                if taken := opened.keys() & values.keys():
                    raise Rejected("invalid_resources", f"two lifespans yield {min(taken)!r}")
                values |= opened
            stack.enter_context(self.holding(values))
            entered = stack.pop_all()
        try:
            yield
        finally:
            await entered.aclose()

    @contextmanager
    def holding(self, values: Mapping[str, Any], *, only: Callable[..., Any] | None = None) -> Iterator[None]:
        """Fill the functions, or one of them, with ``values``; after the block they have what they had before.

        Raises:
            Rejected: ``resource_missing``. Permanent.
        """
        problems: list[str] = []
        wanted = [filled for filled in self._filled if only in {None, filled.function}]
        before = [dict(filled.values) for filled in wanted]
        for filled in wanted:
            filled.resolve(values, problems)
        try:
            if problems:
                raise Rejected("resource_missing", "\n".join(problems), problems=problems)
            yield
        finally:
            for filled, former in zip(wanted, before, strict=True):
                filled.values.clear()
                filled.values.update(former)


@contextmanager
def _noted(name: str) -> Iterator[None]:
    """Name a lifespan in the log while it does not open."""
    loop, began_s = asyncio.get_running_loop(), monotonic()
    again: asyncio.TimerHandle | None = None

    def note() -> None:
        nonlocal again
        import structlog  # here: commands that open no app import this module, too

        log = structlog.get_logger("tickwright.lifespan")
        log.warning("lifespan.not_open_yet", lifespan=name, waits_s=round(monotonic() - began_s))
        again = loop.call_later(SLOW_S, note)

    again = loop.call_later(SLOW_S, note)
    try:
        yield
    finally:
        again.cancel()


def _takes_two(function: Callable[..., Any]) -> bool:
    """Return whether a function can be called with two arguments by their places."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    return True


def _enclosed(middleware: Middleware, work: Any, run: Next) -> Next:
    return lambda: middleware(work, run)


def opener_of(
    function: Callable[..., Any], program: Any
) -> Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]:
    """Return the opener of a function of ``@app.lifespan``, which takes the app or nothing and yields resources.

    Raises:
        Rejected: ``invalid_lifespan``. Permanent.
    """
    arguments = [program] if inspect.signature(function).parameters else []
    if len(inspect.signature(function).parameters) > 1:
        raise Rejected("invalid_lifespan", f"{function.__qualname__}: it takes the app, or nothing")
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        text = f"{function.__qualname__}: write an 'async def' that yields its resources once"
        raise Rejected("invalid_lifespan", text)
    manager = asynccontextmanager(function) if inspect.isasyncgenfunction(function) else function

    @asynccontextmanager
    async def opener(_installation: Any) -> AsyncIterator[Mapping[str, Any]]:
        async with AsyncExitStack() as stack:
            with _noted(function.__qualname__):
                yielded = await stack.enter_async_context(manager(*arguments))
            if yielded is not None and not isinstance(yielded, Mapping):
                kind = type(yielded).__name__
                text = f"{function.__qualname__} yields resources by name, such as {{'http': session}}, not {kind}"
                raise Rejected("invalid_resources", text)
            yield {} if yielded is None else yielded

    return opener
