"""A bucket's client: where it is, who we are there, and how long anything may take."""

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import GCSStore, S3Store

from tickwright.adapters.objectstore.places import Place
from tickwright.domain.errors import Rejected

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
        if place.scheme == "gs":
            return GCSStore(place.bucket, prefix=prefix, client_options=client, retry_config=retry)
        config = _s3_config(environment)
        client["allow_http"] = str(config.get("endpoint", "")).startswith("http://")
        return S3Store(place.bucket, prefix=prefix, config=config, client_options=client, retry_config=retry)
    except (BaseError, ValueError, OSError):  # the library's words may hold what is secret
        raise Rejected(
            "invalid_object_store", f"{place.address('')}: its credentials or settings in the environment are unusable"
        ) from None


def _s3_config(environment: Mapping[str, str]) -> Any:
    """Return what the environment says, first name first; an endpoint with a password in it is refused."""
    names = {
        "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        "access_key_id": ("AWS_ACCESS_KEY_ID",),
        "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
        "session_token": ("AWS_SESSION_TOKEN",),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    }
    found = {
        option: next((environment[name] for name in each if environment.get(name)), "")
        for option, each in names.items()
    }
    endpoint = urlsplit(found["endpoint"])
    if found["endpoint"] and (endpoint.scheme not in ("http", "https") or not endpoint.hostname or endpoint.username):
        raise Rejected(
            "invalid_object_store", "AWS_ENDPOINT_URL: write http://HOST:PORT or https://HOST, without a user"
        )
    return {option: value for option, value in found.items() if value}
