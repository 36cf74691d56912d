"""The rule against server-side request forgery, over spellings of addresses and over addresses."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwright.domain.addresses import AllowList, block_reason, refusal, refusal_of_all
from tickwright.domain.errors import Rejected
from tickwright.domain.targets import WebTarget, parse_target

NO_ADDRESS = AllowList()
NAT64 = IPv6Network("64:ff9b::/96")

# Every way we know to write an address that leads inside; none may come out as "go ahead".
INSIDE_SPELLINGS = [
    "127.0.0.1",
    "127.0.0.1.",
    "127.1",
    "127.0.1",
    "127.000.000.001",
    "127.255.255.254",
    "0177.0.0.1",
    "0177.0.0.01",
    "0x7f.0.0.1",
    "0x7f000001",
    "0X7F000001",
    "2130706433",
    "017700000001",
    "00000000000000000000000000000000000000000000177.0.0.1",
    "0",
    "0.0.0.0",
    "0x0",
    "00",
    "1",
    "10.0.0.1",
    "10.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1",
    "192.168.257",
    "3232235777",
    "169.254.169.254",
    "169.254.43518",
    "2852039166",
    "0xa9fea9fe",
    "0xa9.0xfe.0xa9.0xfe",
    "0251.0376.0251.0376",
    "0251.254.169.254",
    "425.510.425.510",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.51.100.7",
    "203.0.113.7",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "127。0。0。1",
    "127．0．0．1",
    "１２７.0.0.1",
    "①②⑦.⓪.⓪.①",
    "[::]",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[0000:0000:0000:0000:0000:0000:0000:0001]",
    "[::127.0.0.1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::FFFF:a9fe:a9fe]",
    "[0:0:0:0:0:ffff:10.0.0.1]",
    "[::ffff:0:127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b::169.254.169.254]",
    "[64:ff9b:1::7f00:1]",
    "[64:ff9b:1::808:808]",
    "[2002:7f00:1::]",
    "[2002:a9fe:a9fe::1]",
    "[2002:808:808::1]",
    "[2001:0:4136:e378:8000:63bf:3fff:fdd2]",
    "[2001:db8::1]",
    "[3fff::1]",
    "[5f00::1]",
    "[100::1]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[fe80::1]",
    "[fe80::1%25lo]",
    "[fec0::1]",
    "[ff02::1]",
    "[4000::1]",
    "user@127.0.0.1",
    "example.com@127.0.0.1",
    "127.0.0.1\\@example.com",
    "example.com\r\nHost:127.0.0.1",
]


@pytest.mark.parametrize("host", INSIDE_SPELLINGS)
def test_no_spelling_of_an_inside_address_gets_through(host: str) -> None:
    """Either the grammar refuses the text, or the rule blocks the address that it names."""
    try:
        target = parse_target(f"https://{host}/latest/meta-data")
    except Rejected:
        return
    assert isinstance(target, WebTarget)
    assert target.literal is not None, "an address must not pass as a name"
    assert refusal(target.literal, target.port, tls=True, allow=NO_ADDRESS) is not None


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_a_public_address_is_reached_by_tls_only(text: str) -> None:
    """Public and TLS passes; public in plain text is its own class."""
    address = ip_address(text)
    assert block_reason(address) is None
    assert refusal(address, 443, tls=True, allow=NO_ADDRESS) is None
    assert refusal(address, 80, tls=False, allow=NO_ADDRESS) == "plain_text"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("127.0.0.1", "loopback"),
        ("169.254.169.254", "link_local"),
        ("168.63.129.16", "cloud_metadata"),
        ("100.64.0.1", "shared"),
        ("10.0.0.1", "private"),
        ("224.0.0.1", "multicast"),
        ("::ffff:10.0.0.1", "private"),
        ("64:ff9b::a00:1", "private"),
        ("2002:7f00:1::", "transition"),
        ("fd00::1", "private"),
        ("ff02::1", "multicast"),
    ],
)
def test_the_reason_is_a_class_and_not_an_address(text: str, reason: str) -> None:
    """The reason given for a blocked address does not help to map the internal network."""
    assert block_reason(ip_address(text)) == reason


def test_the_allow_list_opens_networks_and_single_ports() -> None:
    """An entry opens its network, on its port if it names one, and also in plain text."""
    allow = AllowList.parse("10.0.0.0/8, 192.168.7.4:8080 ,[fd00::/8]:443,fe80::1")
    assert refusal(ip_address("10.9.9.9"), 1234, tls=False, allow=allow) is None
    assert refusal(ip_address("::ffff:10.9.9.9"), 1234, tls=False, allow=allow) is None
    assert refusal(ip_address("192.168.7.4"), 8080, tls=False, allow=allow) is None
    assert refusal(ip_address("192.168.7.4"), 8081, tls=False, allow=allow) == "private"
    assert refusal(ip_address("fd00::5"), 443, tls=True, allow=allow) is None
    assert refusal(ip_address("fd00::5"), 80, tls=False, allow=allow) == "private"
    assert refusal(ip_address("fe80::1"), 80, tls=False, allow=allow) is None
    assert refusal(ip_address("fe80::2"), 80, tls=False, allow=allow) == "link_local"


def test_an_empty_allow_list_allows_nothing_inside() -> None:
    """The default opens no address at all."""
    assert AllowList.parse("") == AllowList.parse(" , ") == NO_ADDRESS
    assert refusal(ip_address("127.0.0.1"), 80, tls=True, allow=NO_ADDRESS) == "loopback"


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.1/8",
        "localhost",
        "10.0.0.0/33",
        "10.0.0.0/8:0",
        "10.0.0.0/8:x",
        "[fd00::/8]443x",
        "*",
        "10.0.0.0/8:65536",
    ],
)
def test_a_malformed_allow_list_is_refused_and_names_the_entry(text: str) -> None:
    """A typing error in a security setting stops the start; it never opens or closes something else."""
    with pytest.raises(Rejected) as caught:
        AllowList.parse(f"10.0.0.0/8,{text}")
    assert caught.value.code == "invalid_allow_list"


def test_one_blocked_address_refuses_the_whole_answer() -> None:
    """A DNS answer that mixes public and private addresses is what rebinding looks like."""
    mixed = [ip_address("8.8.8.8"), ip_address("10.0.0.1")]
    assert refusal_of_all(mixed, 443, tls=True, allow=NO_ADDRESS) == "private"
    assert refusal_of_all(mixed[:1], 443, tls=True, allow=NO_ADDRESS) is None


@given(st.ip_addresses(v=4))
def test_nothing_that_python_calls_private_is_public_to_us(address: IPv4Address) -> None:
    """Our tables block at least what the standard library blocks."""
    if not address.is_global or address.is_multicast:
        assert block_reason(address) is not None


@given(st.ip_addresses(v=4))
def test_a_mapped_address_is_judged_like_the_one_it_leads_to(address: IPv4Address) -> None:
    """IPv4-mapped and well-known NAT64 addresses are no way around the IPv4 table."""
    mapped = IPv6Address(f"::ffff:{address}")
    nat64 = IPv6Address(int(IPv6Address("64:ff9b::")) + int(address))
    assert block_reason(mapped) == block_reason(nat64) == block_reason(address)


@given(st.ip_addresses(v=6))
def test_only_global_unicast_can_be_public_in_ipv6(address: IPv6Address) -> None:
    """Outside 2000::/3 only the two translated forms lead to public places."""
    if block_reason(address) is None and address.ipv4_mapped is None and address not in NAT64:
        assert int(address) >> 125 == 1
