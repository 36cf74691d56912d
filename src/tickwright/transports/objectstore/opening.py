"""Which store a URL means. Only a bucket needs the library that speaks to buckets, so only then it is loaded."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tickwright.transports.objectstore.locations import parse_place

if TYPE_CHECKING:
    from tickwright.transports.objectstore.bucket import BucketStore
    from tickwright.transports.objectstore.folder import FolderStore


def open_store(url: str, environment: Mapping[str, str]) -> "FolderStore | BucketStore":
    """Return the store that ``url`` means. May block for some ten milliseconds: call it in a thread.

    Args:
        url: ``file:///folder`` (made if it is missing), ``s3://bucket/prefix`` or ``gs://bucket/prefix``.
        environment: Where a bucket's endpoint and credentials are named, as ``AWS_ENDPOINT_URL``.

    Raises:
        Rejected: ``invalid_object_store``, it is none of these, or ``object_store_refused``, the folder may not be
            made or written. Permanent until an operator acts.
        Unavailable: ``object_store_unavailable``, the folder's disk is full or fails. Retry.
    """
    place = parse_place(url)
    if place.scheme == "file":
        from tickwright.transports.objectstore.folder import FolderStore

        return FolderStore(place)
    from tickwright.transports.objectstore.bucket import BucketStore

    return BucketStore(place, environment)
