"""Database URLs: what is one, and what of it may be shown."""

import pytest

from tickwright.domain.errors import Rejected
from tickwright.store.dsn import Server, check_primary_url, check_url, driver_url, servers, shown_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p@h:5432/d", "postgresql://u:***@h:5432/d"),
        ("postgres://u:p%40@h/d?sslmode=require", "postgresql://u:***@h/d?sslmode=require"),
        ("postgresql://u:a@b@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("postgresql://h/d", "postgresql://h/d"),
        ("postgresql:///d?host=/run&user=u&password=p&x=1", "postgresql:///d?host=/run&user=u&password=***&x=1"),
        ("postgresql+psycopg://u:p@[::1]:5432/d", "postgresql://u:***@[::1]:5432/d"),
        ("postgresql://u:p@a:1,b:2/d", "postgresql://u:***@a:1,b:2/d"),
        ("postgresql://u:p,q@a:1,[::2]:2/d", "postgresql://u:***@a:1,[::2]:2/d"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    """Neither the one before the host nor the one among the parameters."""
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "",
        "mysql://a:p@b/c",
        "h/d",
        "dbname=d",
        "postgresql:h",
        "postgresql://[::1/d",
        "postgresql://h:1,h2:x/d",
        "postgresql://h:99999/d",
        "postgresql://h/d?channel_binding=require",
        "postgresql://h/d?require_auth=scram-sha-256",
    ],
)
def test_what_is_no_postgresql_url_is_refused_and_never_repeated(url: str) -> None:
    """One code for all, by every reader."""
    for read in (check_url, check_primary_url, servers, shown_url):
        with pytest.raises(Rejected) as refused:
            read(url)
        assert refused.value.code == "invalid_database_url"
        assert "a:p@b" not in refused.value.message


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("postgresql+psycopg://u:p@h:5432/d", ["postgresql://u:p@h:5432/d"]),
        ("postgresql:///d?host=/run", ["postgresql:///d?host=/run"]),
        (
            "postgres://u@h1:1,[::2]:2,h3/d?target_session_attrs=read-write",
            [
                "postgresql://u@h1:1/d?target_session_attrs=read-write",
                "postgresql://u@[::2]:2/d?target_session_attrs=read-write",
                "postgresql://u@h3/d?target_session_attrs=read-write",
            ],
        ),
        ("postgresql://u@/d?host=h1,::2&port=1,2", ["postgresql://u@h1:1/d", "postgresql://u@[::2]:2/d"]),
        ("postgresql://u:p@h1,h2/d?port=5", ["postgresql://u:p@h1:5/d", "postgresql://u:p@h2:5/d"]),
        ("postgresql://h1,h2/d?port=5,", ["postgresql://h1:5/d", "postgresql://h2/d"]),
        (
            "postgresql:///d?host=/a%20b,/c&port=1,2",
            ["postgresql:///d?host=/a%20b&port=1", "postgresql:///d?host=/c&port=2"],
        ),
        ("postgresql://u@%2Frun:7/d", ["postgresql://u@/d?host=/run&port=7"]),
        ("postgresql://h/?dbname=d", ["postgresql://h?dbname=d"]),
        ("postgresql://h/d?sslmode=require&keepalives_idle=5&gssencmode=disable", ["postgresql://h/d?sslmode=require"]),
    ],
)
def test_a_url_names_one_server_or_several(url: str, found: list[str]) -> None:
    """Each has the user, the database and what both drivers read; hosts and ports may be parameters, as for libpq."""
    assert [server.url for server in servers(url)] == found
    assert driver_url("postgresql+psycopg://u@h1,h2/d") == "postgresql://u@h1,h2/d"


def test_a_time_to_connect_is_that_of_the_url() -> None:
    """``connect_timeout`` is libpq's; 0 means none."""
    assert servers("postgresql://h/d?connect_timeout=3") == [Server("postgresql://h/d", 3)]
    assert servers("postgresql://h/d?connect_timeout=0") == [Server("postgresql://h/d", None)]


@pytest.mark.parametrize("query", ["port=1,2,3", "host=a&port=x", "port=0"])
def test_ports_that_fit_no_hosts_are_refused(query: str) -> None:
    """One port, or one for each host."""
    for read in (check_url, check_primary_url, servers):
        with pytest.raises(Rejected, match="not one port, or one for each host"):
            read(f"postgresql://a,b/d?{query}")


@pytest.mark.parametrize("wanted", ["standby", "read-only", "prefer-standby"])
def test_a_standby_is_refused_as_our_database(wanted: str) -> None:
    """A standby has old rows: claims and relays read the primary only."""
    with pytest.raises(Rejected, match="asks for a standby"):
        check_primary_url(f"postgresql://h1,h2/d?target_session_attrs={wanted}")
    check_primary_url("postgresql://h1,h2/d?x=1&target_session_attrs=primary")
