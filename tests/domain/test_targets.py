"""The grammar of destinations: one reading, or none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwright.domain.errors import Rejected
from tickwright.domain.targets import (
    AmqpTarget,
    KafkaTarget,
    PostgresTarget,
    PythonTarget,
    WebTarget,
    parse_target,
)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("amqp:orders/created", AmqpTarget("orders", "created")),
        ("amqp:/queue.name", AmqpTarget("", "queue.name")),
        ("amqp:fan/", AmqpTarget("fan", "")),
        ("kafka:polls", KafkaTarget("polls")),
        ("kafka:" + "k" * 249, KafkaTarget("k" * 249)),
        ("pg:tickwright.polls", PostgresTarget("tickwright.polls")),
        ("python:invoice.remind", PythonTarget("invoice.remind")),
    ],
)
def test_a_destination_that_is_no_url_is_taken_apart(text: str, target: object) -> None:
    """Each scheme has one form, and the parts come back as they were written."""
    assert parse_target(text) == target


@pytest.mark.parametrize(
    ("text", "url", "port"),
    [
        ("https://Example.COM", "https://example.com/", 443),
        ("https://example.com:443/a", "https://example.com/a", 443),
        ("https://example.com:8443/a?b=c%20d", "https://example.com:8443/a?b=c%20d", 8443),
        ("https://example.com?x=1", "https://example.com/?x=1", 443),
        ("http://10.0.0.7:8080/hook", "http://10.0.0.7:8080/hook", 8080),
        ("wss://[2001:DB8::1]/push", "wss://[2001:db8::1]/push", 443),
        ("ws://gateway_1.internal/", "ws://gateway_1.internal/", 80),
    ],
)
def test_a_url_has_one_canonical_spelling(text: str, url: str, port: int) -> None:
    """Case, default port and empty path are settled here, so nothing later has to guess."""
    target = parse_target(text)
    assert isinstance(target, WebTarget)
    assert (target.url, target.port) == (url, port)


BAD = [
    "",
    "https",
    "https:",
    "https://",
    "https:///path",
    "https:example.com",
    "HTTPS://example.com",
    "ftp://example.com",
    "file:///etc/passwd",
    "gopher://example.com",
    "javascript:alert(1)",
    "//example.com",
    "example.com",
    "https://user@example.com",
    "https://user:pass@example.com",
    "https://example.com@evil.example",
    "https://example.com\\@evil.example",
    "https://example.com\\evil",
    "https://example.com/a b",
    "https://example.com/\r\nHost: evil",
    "https://example.com/\n",
    "https://example.com/\t",
    "https://example.com/\x00",
    "https://example.com/%0",
    "https://example.com/%zz",
    'https://example.com/"',
    "https://example.com/<script>",
    "https://example.com/{id}",
    "https://example.com/#top",
    "https://example.com:0/",
    "https://example.com:65536/",
    "https://example.com:-1/",
    "https://example.com:/",
    "https://example.com:8080x/",
    "https://example.com:80:80/",
    "https://example..com/",
    "https://.example.com/",
    "https://example.com./",
    "https://-example.com/",
    "https://example-.com/",
    "https://exa%6dple.com/",
    "https://" + "a" * 64 + ".com/",
    "https://" + "a." * 127 + "com/",
    "https://example.com/" + "a" * 2048,
    "https://bücher.example/",
    "https://[::1",
    "https://[::1]x/",
    "https://[]/",
    "https://[1.2.3.4]/",
    "https://[fe80::1%25eth0]/",
    "https://[fe80::1%eth0]/",
    "https://::1/",
    "amqp:",
    "amqp:/",
    "amqp:queue",
    "amqp:x/a.*",
    "amqp:x/#",
    "amqp:x/a/b",
    "amqp:x y/a",
    "amqp:x/" + "a" * 256,
    "amqp:" + "x" * 256 + "/a",
    "amqp:x/a\n",
    "kafka:",
    "kafka:..",
    "kafka:a/b",
    "kafka:" + "k" * 250,
    "pg:",
    "pg:a b",
    "pg:a\x00",
    "pg:" + "p" * 256,
    "python:",
    "python:os.system()",
    "python:1st",
]


@pytest.mark.parametrize("text", BAD)
def test_what_could_be_read_in_two_ways_is_refused(text: str) -> None:
    """A malformed destination raises ``invalid_target`` with a message that says what is allowed."""
    with pytest.raises(Rejected) as caught:
        parse_target(text)
    assert caught.value.code == "invalid_target"
    assert len(caught.value.message) > 40
    assert not caught.value.retriable


@given(st.text(max_size=60) | st.text(max_size=40).map("https://".__add__))
def test_any_text_is_a_target_or_rejected(text: str) -> None:
    """No text makes the parser fail in another way, and nothing accepted has a dangerous character."""
    try:
        target = parse_target(text)
    except Rejected:
        return
    if isinstance(target, WebTarget):
        assert not set(target.url) & set('\r\n\t \\"<>#')
        assert "@" not in target.url.split("/")[2]
