"""A bucket's client: where it is, who we are there, and how long anything may take."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import GCSStore, S3Store

from tickwright.domain.errors import Rejected
from tickwright.transports.objectstore.locations import Place

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig


class Bounds(NamedTuple):
    """How long things may take, in seconds.

    Attributes:
        connect_s: Making a connection.
        request_s: One request with its body, at most 8 MiB: a transfer that stands still ends here.
        retries: How often the library repeats a request that failed, after 0.2 s, 0.4 s, ...
        retry_within_s: After so long it repeats nothing.
        call_s: One step of a call with its repetitions: a part, a range, a page of a listing.
        abort_s: Giving up an upload that failed.
    """

    connect_s: float = 3.0
    request_s: float = 30.0
    retries: int = 3
    retry_within_s: float = 10.0
    call_s: float = 45.0
    abort_s: float = 5.0


BOUNDS = Bounds()


def open_bucket(place: Place, environment: Mapping[str, str], bounds: Bounds) -> S3Store | GCSStore:
    """Return the client; nothing is asked of the store yet.

    Raises:
        Rejected: ``invalid_object_store``. Permanent.
    """
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=bounds.connect_s),
        "timeout": timedelta(seconds=bounds.request_s),
    }
    retry: RetryConfig = {
        "max_retries": bounds.retries,
        "retry_timeout": timedelta(seconds=bounds.retry_within_s),
        "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=2), "base": 2},
    }
    prefix = place.path or None
    try:
        config = _config(environment, _GS if place.scheme == "gs" else _S3)
        client["allow_http"] = config.get(_ENDPOINT[place.scheme], "").startswith("http://")
        store = GCSStore if place.scheme == "gs" else S3Store
        return store(place.bucket, prefix=prefix, config=config, client_options=client, retry_config=retry)
    except (BaseError, ValueError, OSError):  # the library's words may hold what is secret
        raise Rejected(
            "invalid_object_store", f"{place.address('')}: its credentials or settings in the environment are unusable"
        ) from None


_S3 = {
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
_GS = {
    "base_url": ("STORAGE_EMULATOR_HOST",),
    "service_account": ("GOOGLE_SERVICE_ACCOUNT",),
    "service_account_key": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
    "application_credentials": ("GOOGLE_APPLICATION_CREDENTIALS",),
}
_ENDPOINT = {"s3": "endpoint", "gs": "base_url"}


def _config(environment: Mapping[str, str], names: Mapping[str, Sequence[str]]) -> Any:
    """Return what the environment says, first name first; an endpoint with a password in it is refused."""
    found = {
        option: next((environment[name] for name in each if environment.get(name)), "")
        for option, each in names.items()
    }
    for option in _ENDPOINT.values():
        _check_endpoint(found.get(option, ""), names.get(option, ()))
    return {option: value for option, value in found.items() if value}


def _check_endpoint(url: str, names: Sequence[str]) -> None:
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname or parts.username):
        text = f"{' or '.join(names)}: write http://HOST:PORT or https://HOST, without a user"
        raise Rejected("invalid_object_store", text)
