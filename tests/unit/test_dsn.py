"""Database URLs: what is one, and what of it may be shown."""

import pytest

from tickwright.domain.errors import Rejected
from tickwright.store.dsn import check_url, shown_url, sqlalchemy_url


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
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    """Neither the one before the host nor the one among the parameters."""
    assert shown_url(url) == shown


@pytest.mark.parametrize("url", ["", "mysql://a:p@b/c", "h/d", "dbname=d", "postgresql:h", "postgresql://[::1/d"])
def test_what_is_no_postgresql_url_is_refused_and_never_repeated(url: str) -> None:
    """One code for all, by every reader."""
    for read in (check_url, sqlalchemy_url, shown_url):
        with pytest.raises(Rejected) as refused:
            read(url)
        assert refused.value.code == "invalid_database_url"
        assert "a:p@b" not in refused.value.message


def test_a_driver_is_named_for_sqlalchemy() -> None:
    """Nothing else of the URL changes."""
    assert sqlalchemy_url("postgresql://u:p@h:5432/d") == "postgresql+psycopg://u:p@h:5432/d"
