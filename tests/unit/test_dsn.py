"""Database URLs: what is one, and what of it may be shown."""

import pytest

from tickwright.domain.errors import Rejected
from tickwright.store.dsn import check_primary_url, check_url, driver_url, server_urls, shown_url


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
    ],
)
def test_what_is_no_postgresql_url_is_refused_and_never_repeated(url: str) -> None:
    """One code for all, by every reader."""
    for read in (check_url, check_primary_url, server_urls, shown_url):
        with pytest.raises(Rejected) as refused:
            read(url)
        assert refused.value.code == "invalid_database_url"
        assert "a:p@b" not in refused.value.message


def test_a_url_names_one_server_or_several() -> None:
    """Each has the user, the database and the parameters; ports and brackets stay where they were."""
    assert server_urls("postgresql+psycopg://u:p@h:5432/d") == ["postgresql://u:p@h:5432/d"]
    assert server_urls("postgresql:///d?host=/run") == ["postgresql:///d?host=/run"]
    assert server_urls("postgres://u@h1:1,[::2]:2,h3/d?target_session_attrs=read-write") == [
        "postgresql://u@h1:1/d?target_session_attrs=read-write",
        "postgresql://u@[::2]:2/d?target_session_attrs=read-write",
        "postgresql://u@h3/d?target_session_attrs=read-write",
    ]
    assert driver_url("postgresql+psycopg://u@h1,h2/d") == "postgresql://u@h1,h2/d"


@pytest.mark.parametrize("wanted", ["standby", "read-only", "prefer-standby"])
def test_a_standby_is_refused_as_our_database(wanted: str) -> None:
    """What is behind lies: claims and relays read the primary only."""
    with pytest.raises(Rejected, match="asks for a standby"):
        check_primary_url(f"postgresql://h1,h2/d?target_session_attrs={wanted}")
    check_primary_url("postgresql://h1,h2/d?x=1&target_session_attrs=primary")
