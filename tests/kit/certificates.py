"""Certificates for tests, made by the system's openssl: valid and invalid ones."""

import shutil
import ssl
import subprocess
from pathlib import Path

from kit.processes import missing

_CA = """
[ca]
default_ca = here
[here]
database = {folder}/index
serial = {folder}/serial
new_certs_dir = {folder}
default_md = sha256
policy = any
unique_subject = no
copy_extensions = copy
[any]
commonName = supplied
"""


class Authority:
    """A certificate authority of one test."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            missing("openssl")
        self._folder = folder
        (folder / "index").touch()
        (folder / "serial").write_text("1000")
        (folder / "ca.conf").write_text(_CA.format(folder=folder))
        self._self_sign("authority", "IP:127.0.0.9", ca=True)

    @property
    def trust(self) -> ssl.SSLContext:
        """Return a client's context that trusts this authority only."""
        return ssl.create_default_context(cafile=str(self._folder / "authority.pem"))

    def server(self, name: str, *, start: str = "20200101000000Z", end: str = "20991231000000Z") -> ssl.SSLContext:
        """Return a server's context certified for ``name`` (``IP:127.0.0.1``, ``DNS:example.com``)."""
        request = [
            "req",
            "-new",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            "/CN=server",
            "-addext",
            f"subjectAltName={name}",
        ]
        self._run(*request, "-keyout", "server.key", "-out", "server.csr")
        times = ["-startdate", start, "-enddate", end]
        signing = ["-cert", "authority.pem", "-keyfile", "authority.key", "-config", "ca.conf"]
        self._run("ca", "-batch", "-notext", *signing, *times, "-in", "server.csr", "-out", "server.pem")
        return self._context("server")

    def self_signed_server(self) -> ssl.SSLContext:
        """Return a server's context with a self-signed certificate."""
        self._self_sign("alone", "IP:127.0.0.1", ca=False)
        return self._context("alone")

    def _self_sign(self, file: str, name: str, *, ca: bool) -> None:
        basic = f"basicConstraints=critical,CA:{'TRUE' if ca else 'FALSE'}"
        usage = ["-addext", "keyUsage=critical,keyCertSign,digitalSignature"]
        command = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", f"/CN={file}"]
        extensions = ["-addext", basic, "-addext", f"subjectAltName={name}", *usage]
        self._run(*command, *extensions, "-keyout", f"{file}.key", "-out", f"{file}.pem")

    def _context(self, file: str) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._folder / f"{file}.pem", self._folder / f"{file}.key")
        return context

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], check=False, cwd=self._folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
