"""A real S3 over HTTP for tests: moto's server, a separate process on a free port."""

import asyncio
import base64
import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from urllib.request import Request, urlopen
from xml.sax.saxutils import escape

from aiohttp import web
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from kit.processes import spawn, wait_for_port
from kit.server_process import ServerProcess

BUCKET = "tickwright"
USER = {"AWS_ACCESS_KEY_ID": "AKIATICKWRIGHT", "AWS_SECRET_ACCESS_KEY": "not-in-any-text", "AWS_REGION": "us-east-1"}


class ObjectServer(ServerProcess):
    """One server with the bucket ``tickwright``; its objects are deleted when it stops.

    Args:
        strict: It knows no user, so that every signed request is refused.
    """

    def __init__(self, *, strict: bool = False) -> None:
        super().__init__("objects")
        self._strict = strict

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment by which an adapter finds this server."""
        return {**USER, "AWS_ENDPOINT_URL": self.url}

    def start(self) -> None:
        """Return when the server answers and has its bucket."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._child = spawn(command, self.log, {"TMPDIR": str(self.folder)})
        wait_for_port(self.port, self._child, self.log, b"OPTIONS / HTTP/1.0\r\n\r\n", 60)
        self.ask("PUT", f"/{BUCKET}")
        if self._strict:
            self.ask("POST", "/moto-api/reset-auth", b"0")

    def ask(self, method: str, path: str, body: bytes | None = None) -> str:
        """Send a request to the server as an administrator, and return the body of its answer."""
        with urlopen(
            Request(self.url + path, body, {"Content-Type": "text/plain"}, method=method), timeout=30
        ) as answer:
            text: bytes = answer.read()
        return text.decode()

    def unfinished(self) -> int:
        """Return how many uploads were begun and neither finished nor aborted."""
        return self.ask("GET", f"/{BUCKET}?uploads").count("<UploadId>")


# Google's object store over HTTP for tests: its XML API, a separate process on a free port.
#
# It keeps objects in memory and follows the documentation of the XML API: objects, ranges, uploads in parts,
# listings (version 2), signed URLs (version 4). A request is signed by the service account's key, as a bearer token
# (RS256) or as a signed URL (GOOG4-RSA-SHA256), or it is refused.
#
# ``python -m kit.object_store PORT PUBLIC_KEY_FILE``

ACCOUNT = "reports@tickwright.example"
_KEPT_HEADERS = ("Content-Type", "Content-Disposition")
_PAGE_MAX = 1000
_SIGNED_HOST = "storage.googleapis.com"
"""The library signs links for Google's host, also if an emulator answers elsewhere."""


class GcsServer(ServerProcess):
    """One server with the bucket ``tickwright``; its objects are deleted when it stops."""

    def __init__(self) -> None:
        super().__init__("gcs")
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment by which an adapter finds this server: the key of a service account, in Google's format."""
        pem = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        account = {
            "type": "service_account",
            "client_email": ACCOUNT,
            "private_key_id": "1",
            "private_key": pem.decode(),
        }
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account), "STORAGE_EMULATOR_HOST": self.url}

    def start(self) -> None:
        """Return when the server answers."""
        public = self.folder / "public.pem"
        public.write_bytes(
            self._key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        command = [sys.executable, "-m", "kit.object_store", str(self.port), str(public)]
        self._child = spawn(command, self.log, {"PYTHONPATH": str(Path(__file__).parents[1])})
        wait_for_port(self.port, self._child, self.log, b"OPTIONS / HTTP/1.0\r\n\r\n", 60)


@dataclass
class _Object:
    data: bytes
    headers: dict[str, str]

    @property
    def e_tag(self) -> str:
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


@dataclass
class _Upload:
    key: str
    headers: dict[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


class _Bucket:
    """The handlers; an object is stored whole or not at all."""

    def __init__(self, public_key: Any) -> None:
        self._public = public_key
        self._objects: dict[str, _Object] = {}
        self._uploads: dict[str, _Upload] = {}

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one request."""
        if request.method == "OPTIONS":
            return web.Response()
        if not self._signed(request):
            return _error(403, "AccessDenied", "The request is not signed by the account.")
        bucket, _, key = unquote(request.raw_path.split("?")[0].lstrip("/")).partition("/")
        if bucket != BUCKET:
            return _error(404, "NoSuchBucket", "The specified bucket does not exist.")
        if not key:
            return self._list(request.query)
        if "uploads" in request.query or "uploadId" in request.query:
            return await self._upload(request, key)
        return await self._object(request, key)

    async def _object(self, request: web.Request, key: str) -> web.Response:
        if request.method == "PUT":
            self._objects[key] = _Object(await request.read(), _kept(request))
            return web.Response(headers={"ETag": self._objects[key].e_tag, "x-goog-generation": "1"})
        found = self._objects.get(key)
        if found is None:
            return _error(404, "NoSuchKey", "The specified key does not exist.")
        if request.method == "DELETE":
            del self._objects[key]
            return web.Response(status=204)
        if request.headers.get("If-Match", found.e_tag) != found.e_tag:
            return _error(412, "PreconditionFailed", "The object was replaced.")
        headers = {
            **found.headers,
            "ETag": found.e_tag,
            "x-goog-generation": "1",
            "Content-Length": str(len(found.data)),
            "Last-Modified": "Mon, 02 Nov 2026 10:00:00 GMT",
        }
        ranged = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if not ranged:
            return web.Response(body=found.data, headers=headers)
        start, end = int(ranged[1]), min(int(ranged[2]), len(found.data) - 1)
        headers |= {
            "Content-Range": f"bytes {start}-{end}/{len(found.data)}",
            "Content-Length": str(end + 1 - start),
        }
        return web.Response(status=206, body=found.data[start : end + 1], headers=headers)

    async def _upload(self, request: web.Request, key: str) -> web.Response:
        if "uploads" in request.query:
            name = f"upload-{len(self._uploads)}"
            self._uploads[name] = _Upload(key, _kept(request))
            return _xml(f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>")
        upload = self._uploads.get(request.query["uploadId"])
        if upload is None or upload.key != key:
            return _error(404, "NoSuchUpload", "The specified upload does not exist.")
        if request.method == "PUT":
            data = await request.read()
            upload.parts[int(request.query["partNumber"])] = data
            return web.Response(headers={"ETag": _Object(data, {}).e_tag})
        del self._uploads[request.query["uploadId"]]
        if request.method == "DELETE":
            return web.Response(status=204)
        named = [int(number) for number in re.findall(r"<PartNumber>(\d+)</PartNumber>", await request.text())]
        whole = self._objects[key] = _Object(b"".join(upload.parts[number] for number in named), upload.headers)
        return _xml(
            f"<CompleteMultipartUploadResult><ETag>{escape(whole.e_tag)}</ETag></CompleteMultipartUploadResult>"
        )

    def _list(self, query: Mapping[str, str]) -> web.Response:
        after = query.get("continuation-token", "")
        names = [key for key in sorted(self._objects) if key.startswith(query.get("prefix", "")) and key > after]
        page = names[: int(query.get("max-keys", _PAGE_MAX))]
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if len(names) > len(page) else ""
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self._objects[key].data)}</Size>"
            f"<LastModified>2026-11-02T10:00:00.000Z</LastModified><ETag>{escape(self._objects[key].e_tag)}</ETag></Contents>"
            for key in page
        )
        return _xml(f"<ListBucketResult>{more}{entries}</ListBucketResult>")

    def _signed(self, request: web.Request) -> bool:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme == "Bearer":
            signed, _, signature = token.rpartition(".")
            claims = json.loads(_unpadded(signed.split(".")[1]))
            return claims["iss"] == ACCOUNT and self._verifies(signed.encode(), _unpadded(signature))
        query = dict(request.query)
        if query.get("X-Goog-Algorithm") != "GOOG4-RSA-SHA256":
            return False
        signed_by = bytes.fromhex(query.pop("X-Goog-Signature"))
        pairs = "&".join(f"{quote(name, safe='')}={quote(query[name], safe='')}" for name in sorted(query))
        path = request.raw_path.split("?")[0]
        canonical = f"{request.method}\n{path}\n{pairs}\nhost:{_SIGNED_HOST}\n\nhost\nUNSIGNED-PAYLOAD"
        scope = query["X-Goog-Credential"].removeprefix(f"{ACCOUNT}/")
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = f"GOOG4-RSA-SHA256\n{query['X-Goog-Date']}\n{scope}\n{digest}"
        return self._verifies(text.encode(), signed_by)

    def _verifies(self, text: bytes, signature: bytes) -> bool:
        try:
            self._public.verify(signature, text, padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            return False
        return True


def _unpadded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _kept(request: web.Request) -> dict[str, str]:
    return {name: request.headers[name] for name in _KEPT_HEADERS if name in request.headers}


def _xml(body: str, status: int = 200) -> web.Response:
    return web.Response(text=f'<?xml version="1.0"?>{body}', status=status, content_type="application/xml")


def _error(status: int, code: str, message: str) -> web.Response:
    return _xml(f"<Error><Code>{code}</Code><Message>{message}</Message></Error>", status)


async def _serve(port: int, public_key: bytes) -> None:
    bucket = _Bucket(serialization.load_pem_public_key(public_key))
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", bucket.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), Path(sys.argv[2]).read_bytes()))
