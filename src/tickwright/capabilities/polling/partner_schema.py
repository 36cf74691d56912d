"""The schema of a partner, as the TOML file and ``@app.partner`` write it."""

import re
from collections.abc import Mapping
from typing import Any

from tickwright.capabilities.polling.consumer.http_courier import read_http
from tickwright.domain.errors import Rejected
from tickwright.partners.settings import PartnerSettings, read_settings

_PARTNER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}")


def read_partner(name: str, table: Any, problems: list[str], *, where: str) -> PartnerSettings:
    """Return what a table or a set of keyword arguments says of a partner; note every mistake."""
    if not _PARTNER_NAME.fullmatch(name):
        problems.append(f"{where}: a name has 1 to 50 letters, digits, '_', '.' or '-'")
    settings = read_settings(table, problems, where=where)
    if settings.http is not None:
        read_http(settings.http, problems, where=f"{where}.http", secrets=lambda _: "")
    return settings


def check_partner(settings: Mapping[str, Any]) -> None:
    """Refuse settings of a partner that nobody could keep to.

    Raises:
        Rejected: ``invalid_partner`` with every mistake. Permanent.
    """
    problems: list[str] = []
    read_partner("partner", settings, problems, where="settings")
    if problems:
        raise Rejected("invalid_partner", "\n".join(problems), problems=problems)
