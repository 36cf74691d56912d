"""A real S3 over HTTP for tests: moto's server, a process of its own on a free port."""

import sys
from collections.abc import Mapping
from urllib.request import Request, urlopen

from kit.processes import spawn, wait_for_port
from kit.server_process import ServerProcess

BUCKET = "tickwright"
USER = {"AWS_ACCESS_KEY_ID": "AKIATICKWRIGHT", "AWS_SECRET_ACCESS_KEY": "not-in-any-text", "AWS_REGION": "us-east-1"}


class ObjectServer(ServerProcess):
    """One server with the bucket ``tickwright``; what it keeps is gone when it stops.

    Args:
        strict: It knows no user at all, so that every signed request is refused.
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
        """What an adapter is told to find this server."""
        return {**USER, "AWS_ENDPOINT_URL": self.url}

    def start(self) -> None:
        """Return when the server answers and has its bucket."""
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._child = spawn(words, self.log, {"TMPDIR": str(self.folder)})
        wait_for_port(self.port, self._child, self.log, b"OPTIONS / HTTP/1.0\r\n\r\n", 60)
        self.ask("PUT", f"/{BUCKET}")
        if self._strict:
            self.ask("POST", "/moto-api/reset-auth", b"0")

    def ask(self, method: str, path: str, body: bytes | None = None) -> str:
        """Say something to the server as an administrator, and return the body of its answer."""
        with urlopen(
            Request(self.url + path, body, {"Content-Type": "text/plain"}, method=method), timeout=30
        ) as answer:
            text: bytes = answer.read()
        return text.decode()

    def unfinished(self) -> int:
        """Return how many uploads were begun and neither finished nor given up."""
        return self.ask("GET", f"/{BUCKET}?uploads").count("<UploadId>")
