"""The arguments of a handler: written to a payload where a job is scheduled, read from it by the worker.

Both sides use one type of dictionary, which is made from the handler's signature. So a call that the handler could not
read is refused when it is scheduled, not when it runs.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NotRequired, TypedDict, get_type_hints

import msgspec

from tickwright.domain.errors import Rejected
from tickwright.domain.strict_json import from_json_value
from tickwright.observe.logs import without_secrets
from tickwright.plugin.lifespan import Resource

MESSAGE_CHARS_MAX = 1000
OUTCOMES = frozenset({"Completed", "Errored", "Snoozed"})
"""Values that a handler may return instead of a result."""
_dictionary: Any = TypedDict  # Any: type checkers want its fields as literals


class PayloadInvalid(Exception):
    """The payload does not fit the handler's arguments; exceptions of the handler itself are never of this type."""


class Arguments:
    """The arguments of one handler, except the job and the resources that the process fills in.

    Attributes:
        names: In the order of the signature.
        returns: The annotation of the result; ``Any`` if there is none, or if it is an attempt outcome.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Read the signature.

        Raises:
            Rejected: ``invalid_handler``: it cannot be called with a job and a JSON object. Permanent.
        """
        where, parameters = name_of(function), parameters_of(function)
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise Rejected("invalid_handler", f"{where}: a handler returns its result; it has no yield")
        if not parameters or parameters[0].kind in {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}:
            raise Rejected("invalid_handler", f"{where} must take the job as its first argument")
        named = [one for one in parameters[1:] if not isinstance(one.default, Resource)]
        if any(one.kind in {one.VAR_POSITIONAL, one.POSITIONAL_ONLY, one.VAR_KEYWORD} for one in named):
            raise Rejected("invalid_handler", f"{where}: give each payload field a parameter of its own")
        hints = hints_of(function) if named else {}
        self.names: Sequence[str] = [one.name for one in named]
        self.returns = result_type(function)
        self._signature = inspect.Signature(named)
        self._all = frozenset(self.names)
        self._required = frozenset(one.name for one in named if one.default is one.empty)
        self._decode = self._decoder(function, named, hints) if named else None
        self._named, self._hints, self._function = named, hints, function

    def _decoder(
        self, function: Callable[..., Any], named: Sequence[inspect.Parameter], hints: Mapping[str, Any]
    ) -> Callable[[str], dict[str, Any]]:
        types = {one.name: hints.get(one.name, Any) for one in named}
        types |= {one.name: NotRequired[types[one.name]] for one in named if one.default is not one.empty}
        try:  # a dictionary, which the call takes as it is: half the time of a struct whose fields are read one by one
            arguments = _dictionary("Arguments", types)
            decode: Callable[[str], dict[str, Any]] = msgspec.json.Decoder(arguments, dec_hook=from_json_value).decode
        except TypeError as error:
            raise Rejected("invalid_handler", f"{name_of(function)}: {error}") from error
        return decode

    def read(self, payload: str) -> dict[str, Any]:
        """Return the arguments of a payload by name. Raises :class:`PayloadInvalid`."""
        if self._decode is None:
            return {}
        try:
            return self._decode(payload)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise PayloadInvalid(shortened(str(error))) from error

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name; those that are left out keep the handler's defaults.

        Raises:
            Rejected: ``invalid_arguments``: one is missing, unknown or given twice. Permanent.
        """
        if args or not self._required <= kwargs.keys() or not kwargs.keys() <= self._all:
            try:
                return self._signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise Rejected("invalid_arguments", f"the job's arguments: {error}") from None
        return dict(kwargs)

    def split(self, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return a mapping of arguments as the arguments of a call.

        Raises:
            Rejected: ``invalid_arguments``: it is no mapping. Permanent.
        """
        if not isinstance(given, Mapping):
            raise Rejected("invalid_arguments", "the job's arguments: give a call of the job, or a mapping by name")
        return (), given

    def check(self, payload: str) -> str:
        """Return a payload that the handler can read.

        Raises:
            Rejected: ``invalid_arguments``: a value has another type than its parameter. Permanent.
        """
        if self._decode is not None:
            try:
                self._decode(payload)
            except msgspec.ValidationError as error:
                raise Rejected("invalid_arguments", f"the job's arguments: {shortened(str(error))}") from None
        return payload

    def check_without(self, payload: str, missing: frozenset[str]) -> str:
        """Do what :meth:`check` does for a payload that gets some of its members later."""
        if missing:
            given = [one for one in self._named if one.name not in missing]
            if not given:
                return payload
            decode = self._decoder(self._function, given, self._hints)
            try:
                decode(payload)
            except msgspec.ValidationError as error:
                raise Rejected("invalid_arguments", f"the job's arguments: {shortened(str(error))}") from None
            return payload
        return self.check(payload)


def name_of(function: Any) -> str:
    """Return the name of a function for texts of errors; of another object its text."""
    return getattr(function, "__qualname__", None) or shortened(repr(function))


def parameters_of(function: Any) -> list[inspect.Parameter]:
    """Return the parameters of a handler. Raises ``Rejected`` (``invalid_handler``), permanent: it has none to read."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise Rejected("invalid_handler", f"{name_of(function)}: a handler is a function: {error}") from error


def hints_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of a handler.

    Raises:
        Rejected: ``invalid_handler``: one of them cannot be read when the program runs. Permanent.
    """
    try:
        return get_type_hints(function)
    except (NameError, TypeError) as error:
        is_function = inspect.isroutine(function) or inspect.isclass(function)
        advice = "import their names also when the program runs" if is_function else "write a function that calls it"
        text = f"{name_of(function)}: its annotations cannot be read: {error}; {advice}"
        raise Rejected("invalid_handler", text) from error


def result_type(function: Callable[..., Any]) -> Any:
    """Return the type that results are decoded to; ``Any`` also where a name of the annotation is not importable."""
    with suppress(NameError, TypeError):
        annotation = get_type_hints(function).get("return", Any)
        parts = {getattr(part, "__name__", "") for part in (annotation, *getattr(annotation, "__args__", ()))}
        return Any if OUTCOMES & parts else annotation
    return Any


def shortened(message: str) -> str:
    """Return msgspec's message, which quotes a refused value whole and ends with its place, shortened."""
    if len(message) <= MESSAGE_CHARS_MAX:
        return message
    _, at, place = message[-MESSAGE_CHARS_MAX // 2 :].rpartition(" - at `")
    return f"{without_secrets(message)[: MESSAGE_CHARS_MAX // 2]}…{at}{place if at else ''}"
