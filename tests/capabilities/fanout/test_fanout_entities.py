"""Entities and modules through the REST API: set, listed, paused, deleted; every error by its code."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import msgspec
import pytest

from kit.api import Answer, Client, RunningApi, running_api
from kit.polling import Ground
from tickwright.capabilities.fanout.entities import entities
from tickwright.capabilities.fanout.entities.schemas import PARTY_BYTES_MAX

HUB: dict[str, Any] = {
    "party": {"country_code": "NL", "endpoints": [{"identifier": "tokens", "url": "https://hub.example/ocpi/tokens"}]},
    "polling_enabled_modules": "LOCATIONS,TARIFFS",
    "partner": "dhl",
}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API with the partner ``dhl``."""
    async with running_api(database_url) as running:
        await Ground(running.pool).partner()
        yield running


async def put(client: Client, code: str, body: Any) -> Answer:
    """Set one entity."""
    return await client.send("PUT", f"/v1/entities/{code}", body)


async def trail(api: RunningApi) -> list[str]:
    """Return the actions on entities and modules in the audit trail, oldest first."""
    rows = await api.pool.fetch("SELECT action FROM tickwright.audit WHERE action ~ '^(entities|modules)' ORDER BY id")
    return [row[0] for row in rows]


async def test_an_entity_is_set_whole_and_read_back(api: RunningApi) -> None:
    """201 for a new one; fields left out of a later put get their defaults; the version counts each change."""
    made = await put(api.admin, "NL.ABC", HUB)
    assert made.status == 201, made.body
    assert (made.json["created"], made.json["entity"]["config_version"]) == (True, 1)
    shown = (await api.admin.get("/v1/entities/NL.ABC")).json
    assert (shown["party"], shown["partner"]) == (HUB["party"], "dhl")
    assert [module["name"] for module in shown["modules"]] == ["LOCATIONS", "TARIFFS"]
    again = await put(api.admin, "NL.ABC", {"is_polling_enabled": False})
    assert (again.status, again.json["created"], again.json["entity"]["config_version"]) == (200, False, 2)
    shown = (await api.viewer.get("/v1/entities/NL.ABC")).json
    whole = {name: shown[name] for name in ("party", "partner", "polling_enabled_modules", "is_polling_enabled")}
    assert whole == {"party": {}, "partner": None, "polling_enabled_modules": "", "is_polling_enabled": False}


async def test_the_same_put_again_changes_nothing(api: RunningApi) -> None:
    """The version, the instant of the change and the audit trail stay; another spelling is no change."""
    first = (await put(api.admin, "a", {**HUB, "polling_enabled_modules": " tariffs, LOCATIONS,tariffs "})).json[
        "entity"
    ]
    assert first["polling_enabled_modules"] == "TARIFFS,LOCATIONS"
    second = await put(api.admin, "a", {**HUB, "polling_enabled_modules": ["Tariffs", "LOCATIONS"]})
    assert (second.status, second.json["created"], second.json["entity"]) == (200, False, first)
    assert await trail(api) == ["entities.put"]


async def test_concurrent_puts_create_one_entity(api: RunningApi) -> None:
    """Of ten puts of one new code, one creates it."""
    answers = await asyncio.gather(*(put(api.admin, "a", HUB) for _ in range(10)))
    assert sorted(answer.status for answer in answers) == [200] * 9 + [201]
    assert (await api.viewer.get("/v1/entities/a")).json["config_version"] == 1


async def test_every_change_notifies_schedulers(api: RunningApi, database_url: str) -> None:
    """A put, a pause, a deletion and a change of a module each send a notification in their transaction."""
    notified = asyncio.Event()
    connection = await asyncpg.connect(database_url)
    await connection.add_listener("tickwright_entities", lambda *_: notified.set())
    try:
        for method, path, body in (
            ("PUT", "/v1/entities/a", HUB),
            ("POST", "/v1/entities/a/pause", None),
            ("PUT", "/v1/modules/CDRS", {"every": "1m"}),
            ("POST", "/v1/modules/CDRS/pause", None),
            ("DELETE", "/v1/entities/a", None),
        ):
            notified.clear()
            assert (await api.admin.send(method, path, body)).status < 300
            await asyncio.wait_for(notified.wait(), 10)
    finally:
        await connection.close()


async def test_pausing_is_the_column_of_the_table(api: RunningApi) -> None:
    """Pause and enable set ``is_polling_enabled``; a repetition is harmless and audited once."""
    await put(api.admin, "a", HUB)
    paused = [(await api.admin.post("/v1/entities/a/pause")).json for _ in range(2)]
    assert [one["is_polling_enabled"] for one in paused] == [False, False]
    assert paused[0] == paused[1]
    assert (await api.admin.post("/v1/entities/a/enable")).json["config_version"] == 3
    assert await trail(api) == ["entities.put", "entities.pause", "entities.enable"]


async def test_a_deleted_entity_is_gone_and_its_runs_are_kept(api: RunningApi) -> None:
    """An entity that comes back goes on where it was: no window runs again."""
    await put(api.admin, "a", HUB)
    await api.pool.execute(
        """INSERT INTO tickwright.fanout_cursors (entity_code, task_type, last_window_at, last_success_at, fence)
           VALUES ('a', 'LOCATIONS', date_trunc('hour', now()), now(), 7)"""
    )
    gone = await api.admin.send("DELETE", "/v1/entities/a")
    assert (gone.status, gone.body) == (204, b"")
    (await api.viewer.get("/v1/entities/a")).says(404, "entity_not_found")
    (await api.admin.send("DELETE", "/v1/entities/a")).says(404, "entity_not_found")
    await put(api.admin, "a", HUB)
    shown = (await api.viewer.get("/v1/entities/a")).json
    assert (shown["config_version"], shown["modules"][0]["last_success_at"] is not None) == (1, True)
    assert await trail(api) == ["entities.put", "entities.delete", "entities.put"]


async def test_a_listing_filters_and_pages_by_code(api: RunningApi) -> None:
    """In the byte order of codes; a module is found however it was written; a cursor belongs to its filter."""
    await api.pool.execute(
        """INSERT INTO tickwright.entities (code, polling_enabled_modules, is_polling_enabled)
           SELECT 'e' || lpad(n::text, 2, '0'),
                  CASE WHEN n % 3 = 0 THEN ' locations ,Tariffs ' ELSE 'CDRS,LOCATIONS_2' END, n % 4 > 0
             FROM generate_series(0, 29) AS n"""
    )
    for code in ("E00", "e_0", "e-0", "e.0"):
        await put(api.admin, code, {})

    async def found(query: str) -> list[str]:
        items: list[str] = []
        cursor = ""
        while True:
            page = (await api.viewer.get(f"/v1/entities?limit=4{query}{cursor}")).json
            items += [item["code"] for item in page["items"]]
            if not page["next"]:
                return items
            cursor = f"&cursor={page['next']}"

    everything = await found("")
    assert everything == sorted(everything)
    assert len(everything) == 34
    assert await found("&module=locations") == [f"e{n:02}" for n in range(0, 30, 3)]
    assert await found("&module=LOCATIONS&enabled=false") == ["e00", "e12", "e24"]
    assert await found("&q=e1") == [f"e{n}" for n in range(10, 20)]
    assert await found("&q=e1&enabled=false") == ["e12", "e16"]
    assert await found("&q=%25") == []
    assert await found("&module=NOBODYS") == []
    cursor = (await api.viewer.get("/v1/entities?limit=4")).json["next"]
    (await api.viewer.get(f"/v1/entities?limit=4&q=e&cursor={cursor}")).says(400, "invalid_cursor")
    assert "party" not in (await api.viewer.get("/v1/entities?limit=1")).json["items"][0]


async def test_a_page_that_has_read_enough_rows_continues_in_the_next(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter that few entities fit costs bounded pages, some of them empty, and misses none."""
    monkeypatch.setattr(entities, "SEARCHED_MAX", 5)
    await api.pool.execute(
        """INSERT INTO tickwright.entities (code, is_polling_enabled)
           SELECT 'e' || lpad(n::text, 2, '0'), n NOT IN (0, 13, 24) FROM generate_series(0, 24) AS n"""
    )
    pages: list[list[str]] = []
    cursor = ""
    while not pages or cursor:
        page = (await api.viewer.get(f"/v1/entities?enabled=false{cursor}")).json
        pages.append([item["code"] for item in page["items"]])
        cursor = f"&cursor={page['next']}" if page["next"] else ""
    assert pages == [["e00"], [], ["e13"], [], ["e24"], []]
    assert len((await api.viewer.get("/v1/entities?limit=3")).json["items"]) == 3
    assert (await api.viewer.get("/v1/entities?q=x&enabled=true")).json == {"items": [], "next": None}


@pytest.mark.parametrize(
    ("code", "body", "status", "error"),
    [
        ("a:b", {}, 422, "invalid_entity_code"),
        ("a%09b", {}, 422, "invalid_entity_code"),
        ("a%20b", {}, 422, "invalid_entity_code"),
        ("%C3%84", {}, 422, "invalid_entity_code"),
        ("-a", {}, 422, "invalid_entity_code"),
        ("a%0A", {}, 422, "invalid_entity_code"),
        ("a" * 101, {}, 422, "invalid_parameter"),
        ("a%2Fb", {}, 404, "not_found"),
        ("a", {"polling_enabled_modules": "LOCATIONS,NOSUCH"}, 422, "unknown_module"),
        ("a", {"polling_enabled_modules": "LOCATIONS;TARIFFS"}, 422, "invalid_modules"),
        ("a", {"polling_enabled_modules": 7}, 422, "invalid_value"),
        ("a", {"polling_enabled_modules": [7]}, 422, "invalid_value"),
        ("a", {"polling_enabled_modules": [f"M{n:049}" for n in range(50)]}, 422, "invalid_modules"),
        ("a", {"partner": "unknown"}, 422, "unknown_partner"),
        ("a", {"partner": ""}, 422, "invalid_value"),
        ("a", {"party": []}, 422, "invalid_value"),
        ("a", {"party": None}, 422, "invalid_value"),
        ("a", {"party": {"a": "x" * PARTY_BYTES_MAX}}, 422, "party_too_large"),
        ("a", {"party": {"a": [1e300] * 300}}, 422, "party_too_large"),
        ("a", {"party": {"a": "nul\u0000"}}, 400, "unsupported_character"),
        ("a", b'{"party": {"a": "\\ud800"}}', 400, "unsupported_character"),
        ("a", b'{"party": {"a": 1, "a": 2}}', 400, "duplicate_key"),
        ("a", b'{"party": {"a": NaN}}', 400, "non_finite_number"),
        ("a", b'{"party": ' + b'{"a":' * 40 + b"1" + b"}" * 41, 400, "too_deep"),
        ("a", {"is_polling_enabled": "yes"}, 422, "invalid_value"),
        ("a", {"code": "a"}, 400, "unknown_field"),
        ("a", {"config_version": 3}, 400, "unknown_field"),
        ("a", {"party": {"token": "abc"}}, 422, "plain_secret"),
    ],
)
async def test_a_bad_entity_is_refused_by_its_code(
    api: RunningApi, code: str, body: Any, status: int, error: str
) -> None:
    """Each error has its own stable code, and nothing is written."""
    (await put(api.admin, code, body)).says(status, error)
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.entities") == 0
    assert await trail(api) == []


async def test_an_unknown_module_is_refused_with_the_known_ones(api: RunningApi) -> None:
    """The answer contains the remedy."""
    said = (await put(api.admin, "a", {"polling_enabled_modules": "NOSUCH"})).json
    assert said["known"] == ["CDRS", "LOCATIONS", "SESSIONS", "TARIFFS"]
    assert "LOCATIONS" in said["detail"]


async def test_the_api_and_the_table_take_parties_of_the_same_size(api: RunningApi) -> None:
    """The bound is on PostgreSQL's text, where numbers have no exponent and commas have a space."""
    party = {"ü": [1, 2.5, 1e300, 5e-324, {"k": 'q"\\\n\u0001\u007f'}], "z": ""}
    text = await api.pool.fetchval("SELECT octet_length($1::jsonb::text)", json.dumps(party))
    for more, status in ((PARTY_BYTES_MAX - text, 201), (PARTY_BYTES_MAX - text + 1, 422)):
        answer = await put(api.admin, "a", {"party": {**party, "z": "x" * more}})
        assert answer.status == status, answer.body
    assert await api.pool.fetchval("SELECT octet_length(party::text) FROM tickwright.entities") == PARTY_BYTES_MAX


@pytest.mark.parametrize(
    ("party", "pointer"),
    [
        ({"token": "abc"}, "/party/token"),
        ({"a": [{"accessToken": "abc"}]}, "/party/a/0/accessToken"),
        ({"a": {"API-Key": "Bearer abc"}}, "/party/a/API-Key"),
        ({"api_key": "x"}, "/party/api_key"),
        ({"Authorization": "Token abc"}, "/party/Authorization"),
        ({"credentials": ["abc"]}, "/party/credentials"),
        ({"private_key": "-----BEGIN"}, "/party/private_key"),
        ({"x/y": {"PASSWORD~": "abc"}}, "/party/x~1y/PASSWORD~0"),
        ({"clientSecret": "$env:NAME"}, "/party/clientSecret"),
        ({"tokens": "https://user:pw@hub.example/x"}, "/party/tokens"),
        ({"tokenUrl": "https://hub.example/x?key=1"}, "/party/tokenUrl"),
    ],
)
async def test_a_secret_in_plain_text_is_refused_with_its_path(
    api: RunningApi, party: dict[str, Any], pointer: str
) -> None:
    """A party is in every message: the answer has the path and the remedy, and never the secret."""
    answer = (await put(api.admin, "a", {"party": party})).says(422, "plain_secret")
    assert answer.json["pointer"] == pointer
    assert "${env:NAME}" in answer.json["detail"]
    assert "abc" not in answer.body.decode()


async def test_a_reference_to_a_secret_is_accepted(api: RunningApi) -> None:
    """References, empty texts, numbers and plain addresses are no secrets."""
    party = {
        "token": "${env:HUB_TOKEN}",
        "authorization": "Token ${env:HUB_TOKEN}",
        "password": "",
        "token_lifetime_s": 60,
        "secrets": None,
        "credentials": {"url": "https://hub.example/credentials", "token": "${env:B}"},
        "tokens": "https://hub.example/ocpi/2.2/tokens",
    }
    assert (await put(api.admin, "a", {"party": party})).status == 201
    assert (await api.operator.get("/v1/entities/a")).json["party"] == party


async def test_a_secret_that_was_written_by_sql_is_never_shown(api: RunningApi) -> None:
    """Neither by the API nor in the audit trail; everything else stays readable."""
    await api.pool.execute(
        "INSERT INTO tickwright.entities (code, party) VALUES ('a', $1)",
        json.dumps({"name": "hub", "auth": {"token": "hunter2", "url": "https://x.example"}}),
    )
    shown = await api.viewer.get("/v1/entities/a")
    assert shown.json["party"] == {"name": "hub", "auth": {"token": "***", "url": "https://x.example"}}
    await put(api.admin, "a", {})
    assert "hunter2" not in str(await api.pool.fetch("SELECT * FROM tickwright.audit"))
    deep = '{"a":' * 3000 + "1" + "}" * 3000
    await api.pool.execute("INSERT INTO tickwright.entities (code, party) VALUES ('deep', $1)", deep)
    assert (await api.viewer.get("/v1/entities/deep")).json["party"] == {"***": "***"}
    long = "1" * 6000
    await api.pool.execute(
        "INSERT INTO tickwright.entities (code, party) VALUES ('long', $1)", f'{{"n": {long}, "token": "hunter2"}}'
    )
    assert (await api.viewer.get("/v1/entities/long")).json["party"] == {"n": long, "token": "***"}


async def test_a_modules_settings_are_set_whole(api: RunningApi) -> None:
    """With the keys of the TOML file; the same again changes nothing; a default module becomes the operator's."""
    listed = (await api.viewer.get("/v1/modules")).json["items"]
    assert [(one["name"], one["every"], one["gated"], one["set_by"]) for one in listed] == [
        ("CDRS", "15m", False, "default"),
        ("LOCATIONS", "15m", False, "default"),
        ("SESSIONS", "5m", True, "default"),
        ("TARIFFS", "1h", False, "default"),
    ]
    made = await api.admin.send("PUT", "/v1/modules/TOKENS_2", {"every": "90s", "timeout": "2m30s", "gated": True})
    assert made.status == 201, made.body
    module = made.json["module"]
    shown = (await api.viewer.get("/v1/modules/TOKENS_2")).json
    assert shown == {**module, "entities": 0, "entities_stale": 0, "windows": shown["windows"]}
    assert len(shown["windows"]) == 4
    assert (module["every"], module["timeout"], module["gated"], module["set_by"]) == ("90s", "150s", True, "operator")
    again = await api.admin.send("PUT", "/v1/modules/TOKENS_2", {"every": "1m30s", "timeout": "150s", "gated": True})
    assert (again.status, again.json) == (200, {"module": module, "created": False})
    whole = (await api.admin.send("PUT", "/v1/modules/TOKENS_2", {"every": "1d"})).json["module"]
    assert (whole["every"], whole["timeout"], whole["gated"]) == ("1d", "1m", False)
    paused = [(await api.admin.post("/v1/modules/TOKENS_2/pause")).json["paused_at"] for _ in range(2)]
    assert paused[0] == paused[1] is not None
    assert (await api.admin.post("/v1/modules/TOKENS_2/enable")).json["paused_at"] is None
    assert await trail(api) == ["modules.put", "modules.put", "modules.pause", "modules.enable"]


@pytest.mark.parametrize(
    ("name", "body", "status", "error", "word"),
    [
        ("locations", {"every": "1m"}, 422, "invalid_module", "capitals"),
        ("A" * 51, {"every": "1m"}, 422, "invalid_parameter", "50"),
        ("A-B", {"every": "1m"}, 422, "invalid_module", "capitals"),
        ("CDRS", {}, 422, "invalid_value", "every"),
        ("CDRS", {"every": 900}, 422, "invalid_value", "every"),
        ("CDRS", {"every": "900"}, 422, "invalid_module", "unit"),
        ("CDRS", {"every": "500ms"}, 422, "invalid_module", "1s and 1d"),
        ("CDRS", {"every": "1500ms"}, 422, "invalid_module", "whole seconds"),
        ("CDRS", {"every": "25h"}, 422, "invalid_module", "between"),
        ("CDRS", {"every": "1m", "timeout": "9ms"}, 422, "invalid_module", "10ms"),
        ("CDRS", {"every": "1m", "timeout": "26m"}, 422, "invalid_module", "30 minutes"),
        ("CDRS", {"every": "1m", "timeout": "2d"}, 422, "invalid_module", "30 minutes"),
        ("CDRS", {"every": "1m", "timeout": "10.5ms"}, 422, "invalid_module", "milliseconds"),
        ("CDRS", {"every": "1m", "gated": 1}, 422, "invalid_value", "gated"),
        ("CDRS", {"every": "1m", "interval": "1m"}, 400, "unknown_field", "interval"),
    ],
)
async def test_a_bad_module_is_refused_by_its_code(  # noqa: PLR0917  pytest calls it by name
    api: RunningApi, name: str, body: Any, status: int, error: str, word: str
) -> None:
    """Each error has its remedy, and nothing is written."""
    said = (await api.admin.send("PUT", f"/v1/modules/{name}", body)).says(status, error)
    assert word in said.json["detail"]
    assert await trail(api) == []


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("GET", "/v1/entities/unknown", 404, "entity_not_found"),
        ("POST", "/v1/entities/unknown/pause", 404, "entity_not_found"),
        ("POST", "/v1/entities/unknown/enable", 404, "entity_not_found"),
        ("GET", "/v1/entities/unknown/explain?module=CDRS", 404, "entity_not_found"),
        ("GET", "/v1/entities/unknown/explain", 422, "invalid_parameter"),
        ("GET", "/v1/entities?limit=0", 422, "invalid_parameter"),
        ("GET", "/v1/entities?colour=red", 400, "unknown_parameter"),
        ("GET", "/v1/entities?q=%00", 400, "unsupported_character"),
        ("GET", "/v1/modules/NOSUCH", 404, "module_not_found"),
        ("POST", "/v1/modules/NOSUCH/pause", 404, "module_not_found"),
        ("POST", "/v1/modules/NOSUCH/enable", 404, "module_not_found"),
    ],
)
async def test_a_bad_request_is_refused_by_its_code(
    api: RunningApi, method: str, path: str, status: int, error: str
) -> None:
    """Each error has its own stable code."""
    (await api.admin.send(method, path)).says(status, error)


@pytest.mark.parametrize("url", ["https://u:abc@cpo.example/x", "see https://abc@cpo.example", "sftp://u:@h/"])
async def test_a_user_in_a_url_is_a_secret_in_plain_text(api: RunningApi, url: str) -> None:
    """It is refused with its path, unless it is a reference; one that was written by SQL is never shown."""
    refused = await api.admin.send("PUT", "/v1/entities/user", {"party": {"a": [{"b": url}]}})
    refused.says(422, "plain_secret")
    assert refused.json["pointer"] == "/party/a/0/b"
    named = {"url": "https://u:${env:TOKEN}@cpo.example/x", "mail": "https://cpo.example/?to=a@b.example"}
    assert (await api.admin.send("PUT", "/v1/entities/user", {"party": named})).status == 201
    await api.pool.execute(
        "UPDATE tickwright.entities SET party = $1::jsonb WHERE code = 'user'", json.dumps({"a": url})
    )
    assert (await api.admin.get("/v1/entities/user")).json["party"] == {"a": "***"}


async def test_a_number_that_readers_refuse_is_shown_as_a_text(api: RunningApi) -> None:
    """SQL may write thousands of digits; every JSON reader, the command line's too, can take the answer."""
    long = "9" * 6000
    await api.pool.execute(
        "INSERT INTO tickwright.entities (code, party) VALUES ('digits', $1::jsonb)",
        f'{{"n": {long}, "f": {"1" * 400}.5, "i": 1{"0" * 30}}}',
    )
    for client in (api.viewer, api.admin):
        party = msgspec.json.decode((await client.get("/v1/entities/digits")).body)["party"]
        assert party == {"n": long, "f": f"{'1' * 400}.5", "i": 10**30}
