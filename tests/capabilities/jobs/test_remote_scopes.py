"""Keys for remote workers, narrowed to names or to pools; and what a registration may name."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kit.api import ADMIN, Answer, Client
from kit.remote import RemoteSite, RemoteWorker, ended, remote_site
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller, Role, is_scope


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[RemoteSite]:
    """A running api with two types in two pools."""
    async with remote_site(database_url, tmp_path) as site:
        await site.type("mail.send", target="remote:mailers")
        await site.type("billing.pay", target="remote:billing")
        yield site


async def tried(site: RemoteSite, scopes: list[str], **works: Any) -> tuple[Answer, Client]:
    """Register with a key of these scopes."""
    key = (await site.keys.create("worker", None, caller=ADMIN, scopes=scopes)).key
    client = site.client.with_key(key)
    body = {"name": "test", "pool": "mailers", **works}
    return await client.post("/v1/worker/register", body), client


@pytest.mark.parametrize(
    ("scopes", "works", "allowed"),
    [
        (["jobs:work"], {"types": ["mail.send"], "pool": "mailers"}, True),
        (["work:mail.send"], {"types": ["mail.send"]}, True),
        (["work:mail.*"], {"types": ["mail.send", "mail.receive"]}, True),
        (["work:mail.*"], {"types": ["mail.send", "billing.pay"]}, False),
        (["work:mail.*", "work:billing.pay"], {"types": ["mail.send", "billing.pay"]}, True),
        (["work:mail"], {"types": ["mail.send"]}, False),
        (["work-pool:mailers"], {"types": ["mail.send", "billing.pay"]}, True),
        (["work-pool:mailers"], {"types": ["mail.send"], "pool": "billing"}, False),
        (["work:acme"], {"partners": ["acme"]}, True),
        (["work:acme"], {"partners": ["acme"], "modules": ["LOCATIONS"]}, False),
        (["work:*"], {"batches": ["export"], "pool": "billing"}, True),
        (["jobs:schedule"], {"types": ["mail.send"]}, False),
    ],
)
async def test_a_narrowed_key_registers_for_what_it_names_only(
    site: RemoteSite, scopes: list[str], works: dict[str, Any], allowed: bool
) -> None:
    """Every name has to match, or the pool; names are those of types, partners, modules and batches alike."""
    answer, _ = await tried(site, scopes, **works)
    assert answer.status == (201 if allowed else 403), answer.body
    if not allowed:
        assert answer.json["code"] == "forbidden"


async def test_a_narrowed_key_works_and_opens_nothing_else(site: RemoteSite) -> None:
    """The calls of a worker are open to it, every other route is not."""
    [job_id] = await site.add("mail.send")
    answer, client = await tried(site, ["work:mail.*"], types=["mail.send"])
    worker = RemoteWorker(client, answer.json["session"], answer.json)
    [job] = await worker.claim()
    assert job["id"] == job_id
    assert (await worker.results(ended(job)))["done"] == 1
    assert (await worker.said("heartbeat", {}))["stop"] == []
    for path in (f"/v1/jobs/{job_id}", "/v1/workers", "/v1/partners"):
        (await client.get(path)).says(403, "forbidden")
    (await client.post("/v1/jobs", {"task_type": "mail.send", "payload": {}})).says(403, "forbidden")


async def test_a_registration_names_something(site: RemoteSite) -> None:
    """A worker without a type, partner, module or batch would wait for ever."""
    answer = await site.client.post("/v1/worker/register", {"name": "x", "pool": "p"})
    answer.says(422, "invalid_value")


@pytest.mark.parametrize(
    "scope", ["work:", "work:a b", "work:**", "work-pool:", "work-pool:a*", "jobs:working", "work"]
)
async def test_a_scope_that_is_none_is_refused(site: RemoteSite, scope: str) -> None:
    """The error names the scopes that there are."""
    assert not is_scope(scope)
    with pytest.raises(Rejected, match="work:NAME"):
        await site.keys.create("worker", None, caller=ADMIN, scopes=[scope])


def test_a_key_with_a_role_works_everything() -> None:
    """Scopes narrow keys without a role only."""
    assert Caller("operator", Role.OPERATOR).may_work("any", ["name"])
