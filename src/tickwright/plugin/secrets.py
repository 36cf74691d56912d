"""Secrets that the operator of a process declared, each with the hosts that may receive it.

::

    TICKWRIGHT_SECRET_TNM_TOKEN=…               ${env:TNM_TOKEN}
    TICKWRIGHT_SECRET_HOSTS_TNM_TOKEN=cpo.example,*.dhl.example:443

    TICKWRIGHT_SECRETS_DIR=/run/secrets         ${file:tnm_token} is /run/secrets/tnm_token,
                                                and /run/secrets/tnm_token.hosts names its hosts

Authors of documents are not trusted: a reference reads no other part of the environment and no other file.
"""

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from tickwright.domain.addresses import AllowList
from tickwright.domain.errors import Rejected
from tickwright.domain.secrets import Destination, HostRule, Secrets, parse_hosts

SECRET = "TICKWRIGHT_SECRET_"  # noqa: S105  a prefix of variable names
HOSTS = "TICKWRIGHT_SECRET_HOSTS_"
FILE = "file:"
HOSTS_SUFFIX = ".hosts"
SECRET_BYTES_MAX = 65_536


class DeclaredSecrets:
    """Finds secrets, and returns them for the hosts that they are bound to; addresses in ``allow`` need no TLS.

    Invariants:
        SEC-1: a secret is returned only for destinations that its own list of hosts covers, all of them.
        SEC-2: a reference reads ``TICKWRIGHT_SECRET_*`` and regular files inside the folder, and nothing else.
    """

    def __init__(
        self, environment: Mapping[str, str], folder: Path | None = None, allow: AllowList | None = None
    ) -> None:
        self._environment, self._folder, self._allow = environment, folder, allow or AllowList()

    def bound_to(self, destinations: Sequence[Destination]) -> Secrets:
        """Return the secrets that may go to every one of ``destinations``.

        The returned function raises ``Rejected``: ``secret_not_declared``, ``secret_host_not_allowed``,
        ``secret_host_unknown``, ``invalid_secret_hosts``, ``secret_unreadable``. Retry after the operator has declared
        the secret.
        """

        def find(name: str) -> str:
            found, hosts, remedy = self._from_file(name) if name.startswith(FILE) else self._from_environment(name)
            if found is None:
                raise Rejected("secret_not_declared", f"no secret {_short(name)} is declared here; {remedy}")
            self._check(name, parse_hosts(hosts or ""), destinations, remedy)
            return found

        return find

    def _check(self, name: str, rules: Sequence[HostRule], destinations: Sequence[Destination], remedy: str) -> None:
        if not destinations:
            raise Rejected("secret_host_unknown", f"nothing says where the secret {_short(name)} is sent to")
        for to in destinations:
            plain = to.literal is not None and self._allow.allows(to.literal, to.port or 0)
            if not any(rule.covers(to, plain=plain) for rule in rules):
                said = f"the secret {_short(name)} may not be sent to {to}; {remedy}"
                raise Rejected("secret_host_not_allowed", said, host=to.host)

    def _from_environment(self, name: str) -> tuple[str | None, str | None, str]:
        short = _short(name)
        remedy = f"set {SECRET}{short} and its hosts in {HOSTS}{short}, such as cpo.example, where this process runs"
        if f"{SECRET}{short}".startswith(HOSTS):
            return None, None, remedy
        return self._environment.get(SECRET + short), self._environment.get(HOSTS + short), remedy

    def _from_file(self, name: str) -> tuple[str | None, str | None, str]:
        short = name.removeprefix(FILE)
        remedy = f"put it into the file {short} of TICKWRIGHT_SECRETS_DIR, and its hosts into {short}{HOSTS_SUFFIX}"
        if self._folder is None or short.endswith(HOSTS_SUFFIX):
            return None, None, remedy
        return _read(self._folder, short), _read(self._folder, short + HOSTS_SUFFIX), remedy

    def values(self) -> list[str]:
        """Return every declared secret, for masking."""
        named = [name for name in self._environment if name.startswith(SECRET) and not name.startswith(HOSTS)]
        found = [self._environment[name] for name in named]
        with suppress(OSError, Rejected):
            files = [] if self._folder is None else sorted(one.name for one in self._folder.iterdir() if one.is_file())
            read = (_read(self._folder, name) for name in files if self._folder and not name.endswith(HOSTS_SUFFIX))
            found += [text for text in read if text]
        return found

    def problems(self) -> list[str]:
        """Return problems of the declarations, without any value, for the doctor."""
        found = []
        for name in sorted(self._environment):
            if name.startswith(SECRET) and not name.startswith(HOSTS):
                found += _problem(name, HOSTS + _short(name), self._environment.get)
        folder = self._folder
        if folder is None:
            return found
        try:
            files = sorted(one.name for one in folder.iterdir() if one.is_file())
        except OSError as error:
            return [*found, f"TICKWRIGHT_SECRETS_DIR, {folder}, cannot be read: {error.strerror}"]
        for name in files:
            if not name.endswith(HOSTS_SUFFIX):
                found += _problem(name, name + HOSTS_SUFFIX, partial(_read, folder))
        return found


def _short(name: str) -> str:
    return name.removeprefix(SECRET)


def _problem(name: str, where: str, find: Callable[[str], str | None]) -> list[str]:
    try:
        rules = parse_hosts(find(where) or "")
    except Rejected as error:
        return [f"{where}: {error.message}"]
    return [] if rules else [f"{name} is handed out to nothing: {where} names no host"]


def _read(folder: Path, name: str) -> str | None:
    """Return a file's text without the final line end; ``None`` if there is no file.

    A link is followed only inside the folder, as in a mounted Kubernetes secret.
    """
    root = folder.resolve()
    path = (root / name).resolve()
    if not path.is_relative_to(root):
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Rejected("secret_unreadable", f"the file {name} cannot be read: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        found = os.read(descriptor, SECRET_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    try:
        text = found.decode()
    except UnicodeDecodeError:
        raise Rejected("secret_unreadable", f"the file {name} is not UTF-8") from None
    if len(found) > SECRET_BYTES_MAX:
        raise Rejected("secret_unreadable", f"the file {name} has more than {SECRET_BYTES_MAX} bytes")
    return text.removesuffix("\n").removesuffix("\r")
