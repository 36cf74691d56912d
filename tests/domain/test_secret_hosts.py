"""Secrets are inserted by name, from what was declared, for the hosts that were declared for them."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tickwright.capabilities.fanout.entities.schemas import masked_hosts
from tickwright.domain.addresses import AllowList
from tickwright.domain.errors import Rejected
from tickwright.domain.secrets import Destination, destination_of, destinations_of, parse_hosts, resolve_references
from tickwright.plugin.secrets import SECRET_BYTES_MAX, DeclaredSecrets

ENVIRONMENT = {
    "AWS_SECRET_ACCESS_KEY": "canary",
    "TICKWRIGHT_DATABASE_URL": "postgresql://canary",
    "TICKWRIGHT_SECRETS_DIR": "canary",
    "TICKWRIGHT_SECRET_TOKEN": "abc",
    "TICKWRIGHT_SECRET_HOSTS_TOKEN": "cpo.example, *.dhl.example:443",
    "TICKWRIGHT_SECRET_LOOSE": "canary",
    "TICKWRIGHT_SECRET_WRONG": "canary",
    "TICKWRIGHT_SECRET_HOSTS_WRONG": "*",
    "TICKWRIGHT_SECRET_HOSTS_": "canary",
}
HOME = destination_of("https://cpo.example/ocpi")


def resolved(reference: str, *urls: str, secrets: DeclaredSecrets | None = None) -> Any:
    """Put one reference in, for these addresses."""
    found = secrets or DeclaredSecrets(ENVIRONMENT)
    return resolve_references(reference, found.bound_to([destination_of(url) for url in urls] or [HOME]))


def refusal(*words: Any, **more: Any) -> str:
    """Return the code under which nothing is put in."""
    with pytest.raises(Rejected) as refused:
        resolved(*words, **more)
    assert "canary" not in refused.value.message
    return refused.value.code


@pytest.mark.parametrize("name", ["TOKEN", "TICKWRIGHT_SECRET_TOKEN"])
def test_a_declared_secret_goes_to_its_hosts(name: str) -> None:
    """With the beginning of the variable's name or without it, for every host of its list."""
    reference = f"Bearer ${{env:{name}}}"
    assert resolved(reference) == "Bearer abc"
    assert resolved(reference, "https://cpo.example:8443/x", "wss://a.b.dhl.example/") == "Bearer abc"


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "TICKWRIGHT_DATABASE_URL",
        "TICKWRIGHT_SECRETS_DIR",
        "TICKWRIGHT_SECRET_HOSTS_TOKEN",
        "TICKWRIGHT_SECRET_HOSTS_",
        "HOSTS_TOKEN",
        "HOSTS_",
        "NOTHING",
        "PATH",
    ],
)
def test_nothing_else_of_the_environment_is_read(name: str) -> None:
    """Not another program's secrets, not our own settings, not the lists of hosts."""
    assert refusal(f"${{env:{name}}}") == "secret_not_declared"


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/",
        "https://cpo.example.evil.example/",
        "https://xcpo.example/",
        "https://dhl.example/",
        "https://a.dhl.example:8443/",
        "http://cpo.example/",
        "ws://cpo.example/",
        "https://cpo.example@evil.example/",
    ],
)
def test_a_secret_goes_to_no_other_host(url: str) -> None:
    """Also not by a name that begins or ends alike, on another port, or without TLS."""
    assert refusal("${env:TOKEN}", url) == "secret_host_not_allowed"
    assert refusal("${env:TOKEN}", "https://cpo.example/", url) == "secret_host_not_allowed"


def test_without_declared_hosts_a_secret_goes_nowhere() -> None:
    """And a list that cannot be read is reported, not ignored."""
    assert refusal("${env:LOOSE}") == "secret_host_not_allowed"
    assert refusal("${env:WRONG}") == "invalid_secret_hosts"
    with pytest.raises(Rejected, match="nothing says where"):
        resolve_references("${env:TOKEN}", DeclaredSecrets(ENVIRONMENT).bound_to(()))
    assert len(DeclaredSecrets(ENVIRONMENT).problems()) == 2


def test_plain_http_is_for_declared_and_allowed_addresses() -> None:
    """A host that is written with http://, or an address of TICKWRIGHT_ALLOW_TARGETS."""
    declared = {"TICKWRIGHT_SECRET_T": "abc", "TICKWRIGHT_SECRET_HOSTS_T": "http://hub.internal:80, 10.0.0.7"}
    secrets = DeclaredSecrets(declared, allow=AllowList.parse("10.0.0.0/8"))
    assert resolved("${env:T}", "http://hub.internal/x", "http://10.0.0.7:8080/", secrets=secrets) == "abc"
    strict = DeclaredSecrets(declared)
    assert refusal("${env:T}", "http://10.0.0.7:8080/", secrets=strict) == "secret_host_not_allowed"


@pytest.mark.parametrize(
    ("document", "hosts"),
    [
        ({"url": "https://cpo.example/ocpi?key=${env:TOKEN}"}, ["cpo.example:443"]),
        ({"a": [{"b": "HTTPS://CPO.example:8443#x"}], "c": 1, "d": None}, ["cpo.example:8443"]),
        ({"url": "https://u:${env:TOKEN}@cpo.example/{version}/x y"}, ["cpo.example:443"]),
        ({"host": "cpo.example", "paths": ["/a"], "url": "/ocpi"}, ["cpo.example"]),
        ({"api_host": "evil.example:99/x", "url": "https://cpo.example"}, ["evil.example:99", "cpo.example:443"]),
        ({"url": "https://cpo.example/?next=http://evil.example/"}, ["cpo.example:443", "http://evil.example:80"]),
        ({"url": "https://[2001:db8::1]/"}, ["[2001:db8::1]:443"]),
        ({"url": "sftp://cpo.example/x"}, ["http://cpo.example"]),
    ],
)
def test_the_addresses_of_a_document_are_found(document: Any, hosts: list[str]) -> None:
    """At any depth, each of them, and hosts by the names of their members."""
    assert [str(one) for one in destinations_of(document)] == hosts


@pytest.mark.parametrize(
    "name",
    [
        "hosts",
        "urls",
        "uris",
        "endpoints",
        "url2",
        "host_1",
        "server",
        "address",
        "addr",
        "webhook",
        "domain",
        "callbackURL",
        "Host",
        "host_name",
        "url_primary",
        "base_url",
        "SERVER",
        "apiServers",
        "targets",
        "origin",
        "proxy",
        "gateway",
    ],
)
def test_an_address_without_a_scheme_is_found_by_many_names(name: str) -> None:
    """Plurals, numbers and more words; at any depth below the name; a name of a path or of a person is none."""
    for value in ("evil.example", ["evil.example/x"], {"a": {"b": ["evil.example:443"]}}):
        found = destinations_of({"url": "https://cpo.example", name: value})
        assert [one.host for one in found] == ["cpo.example", "evil.example"]


@pytest.mark.parametrize(
    "document",
    [
        {"endpoints": [{"identifier": "cdrs", "role": "SENDER", "url": "https://cpo.example/cdrs"}]},
        {"url": "https://cpo.example", "address": "Main street 5. Berlin", "server": "${env:TOKEN}", "proxy": "no"},
        {"url": "https://cpo.example", "version": "2.2.1", "security": "a.b", "contact": {"name": "a.b"}},
    ],
)
def test_what_reads_as_no_address_is_none(document: Any) -> None:
    """A text below such a name counts with a dot, a port or a bracket in one word."""
    assert [one.host for one in destinations_of(document)] == ["cpo.example"]


@pytest.mark.parametrize(
    "url",
    [
        "https://cpo.example\\@evil.example/",
        "https://cpo.example\t.evil.example/",
        "https://cpo.example\n/",
        "https://a@cpo.example@evil.example/",
        "https://cpo.example /",
        "https:evil.example",
        " https:/\\evil.example",
        "//evil.example/x",
        "\\\\evil.example",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://évil.example/",
        "https://",
        "://evil.example",
        "/\t/evil.example/x",
        "/\n/evil.example/x",
        "\x01//evil.example/x",
        "\x00//evil.example/x",
        " \x08//evil.example/x",
        "ht\ttp:/\t/evil.example/x",
        "https://cpo.example/\x7f",
    ],
)
def test_what_two_parsers_could_read_differently_gets_no_secret(url: str) -> None:
    """It is refused as a whole, whatever else is in the document."""
    with pytest.raises(Rejected, match="looks like an address") as refused:
        destinations_of({"fine": "https://cpo.example/", "url": url})
    assert refused.value.code == "secret_host_unknown"


def test_a_document_without_an_address_is_refused() -> None:
    """Nothing says which host would get its secret."""
    with pytest.raises(Rejected, match="names no address"):
        destinations_of({"token": "${env:TOKEN}", "version": "2.2.1", "modules": ["LOCATIONS"]})


@pytest.mark.parametrize("text", ["*", "*.", "https://a.example", "a.example/x", "a b@c", "a..b", "http://", "a:0"])
def test_a_wrong_list_of_hosts_names_its_entry(text: str) -> None:
    """With what may be written instead."""
    with pytest.raises(Rejected) as refused:
        parse_hosts(f"good.example,{text}")
    assert refused.value.code == "invalid_secret_hosts"


def test_an_empty_list_and_blanks_are_no_entries() -> None:
    """Commas, blanks and lines separate."""
    assert parse_hosts(" \n") == ()
    assert [rule.host for rule in parse_hosts("a.example,\n b.example ,")] == ["a.example", "b.example"]
    assert parse_hosts("a.example")[0].covers(Destination("a.example", 1, tls=True))


# ---------------------------------------------------------------------------------------------- files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of secrets beside a file that is none of them."""
    (tmp_path / "outside").write_text("canary")
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "tnm").write_text("abc\n")
    (folder / "tnm.hosts").write_text("cpo.example\n")
    return folder


def from_file(name: str, folder: Path) -> Any:
    """Put in the secret of a file."""
    return resolved(f"${{file:{name}}}", secrets=DeclaredSecrets({}, folder))


def test_a_file_of_the_folder_is_a_secret(folder: Path) -> None:
    """Without the end of its line, also by a link inside the folder, as Kubernetes mounts them; read at each call."""
    assert from_file("tnm", folder) == "abc"
    (folder / "..data").mkdir()
    (folder / "tnm").rename(folder / "..data" / "tnm")
    (folder / "tnm").symlink_to("..data/tnm")
    assert from_file("tnm", folder) == "abc"
    (folder / "..data" / "tnm").write_text("new")
    assert from_file("tnm", folder) == "new"


def test_nothing_outside_the_folder_is_read(folder: Path) -> None:
    """Not by a link, not the lists of hosts, no folder, no pipe; a path is no name of a reference."""
    (folder / "link").symlink_to(folder.parent / "outside")
    (folder / "up").symlink_to("..")
    (folder / "sub").mkdir()
    for name in ("link", "up", "sub", "tnm.hosts", "nothing"):
        (folder / f"{name}.hosts").write_text("cpo.example")
        assert refusal(f"${{file:{name}}}", secrets=DeclaredSecrets({}, folder)) == "secret_not_declared"
    for path in ("../outside", "/etc/passwd", "up/outside", ".hidden"):
        assert from_file(path, folder) == f"${{file:{path}}}"
    assert refusal("${file:tnm}", secrets=DeclaredSecrets({})) == "secret_not_declared"


def test_a_file_that_is_no_text_or_too_large_is_refused(folder: Path) -> None:
    """With its name, and nothing of what is in it."""
    (folder / "tnm").write_bytes(b"x" * (SECRET_BYTES_MAX + 1))
    assert refusal("${file:tnm}", secrets=DeclaredSecrets({}, folder)) == "secret_unreadable"
    (folder / "tnm").write_bytes(b"\xff")
    assert refusal("${file:tnm}", secrets=DeclaredSecrets({}, folder)) == "secret_unreadable"
    (folder / "bare").write_text("abc")
    assert refusal("${file:bare}", secrets=DeclaredSecrets({}, folder)) == "secret_host_not_allowed"
    (folder / "tnm.hosts").write_bytes(b"\xff")
    assert [line.partition(" ")[0] for line in DeclaredSecrets({}, folder).problems()] == ["bare", "tnm.hosts:"]
    [said] = DeclaredSecrets({}, folder / "nothing").problems()
    assert "cannot be read" in said


@pytest.mark.parametrize("text", ["x", "x.", "x:1", "://", "x@", "1" * 299 + " "])
@pytest.mark.parametrize("name", ["note", "url", "servers"])
def test_a_long_text_is_read_once(text: str, name: str) -> None:
    """What is looked for in a given text takes as long as the text: from each letter on it would take hours."""
    party = {name: text * (1_000_000 // len(text)) + " y"}
    with suppress(Rejected):
        destinations_of(party)
    assert masked_hosts(json.dumps(party))
