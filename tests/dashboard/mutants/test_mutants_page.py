"""Mutants of the guards between a browser and the API: without a guard the check of its promise has to fail."""

from pathlib import Path
from typing import Any

import pytest

from kit import page_guards as checks
from kit.mutants import mutate
from kit.page_guards import Check, guarded
from tickwright.api import app, auth, cookies, gate, sessions
from tickwright.capabilities.jobs import rest as job_routes
from tickwright.capabilities.jobs import rest as lane
from tickwright.capabilities.operations.keys import ApiKeys
from tickwright.capabilities.operations.snapshots import Snapshots
from tickwright.dashboard import page
from tickwright.ports import views as user_data
from tickwright.rest import problems
from tickwright.store import bounds

MUTANTS: list[tuple[str, Any, str, str, Check]] = [
    ("scripts read the cookie", cookies._set_cookie, ', "HttpOnly"', "", checks.check_the_cookie),
    ("other sites send the cookie", cookies._set_cookie, "SameSite=Strict", "SameSite=Lax", checks.check_the_cookie),
    ("the cookie leaves in the clear", cookies._set_cookie, "if secure else", "if False else", checks.check_the_cookie),
    ("a proxy's TLS is not seen", cookies.over_tls, "*forwarded, ", "", checks.check_the_cookie),
    (
        "a token is not compared",
        cookies.check_change,
        "not hmac.compare_digest",
        "False and not hmac.compare_digest",
        checks.check_the_token,
    ),
    (
        "no token is enough",
        cookies.check_change,
        "if not shown:",
        "if not shown:\n        return\n    if not shown:",
        checks.check_the_token,
    ),
    ("one token for all", cookies.csrf_token, "token.encode()", 'b"key"', checks.check_the_token),
    (
        "the cookie alone changes things",
        auth.caller_of,
        'if scope["method"] not in SAFE_METHODS',
        "if False",
        checks.check_the_token,
    ),
    (
        "the site is not checked",
        cookies.check_change,
        "if site_of(headers) is not Site.OURS",
        "if False",
        checks.check_the_site,
    ),
    (
        "a request without a site is ours",
        cookies.check_change,
        "is not Site.OURS",
        "is Site.OTHER",
        checks.check_the_site,
    ),
    (
        "a subdomain is ours",
        cookies.site_of,
        "set(sites) <= _OURS",
        'set(sites) <= {*_OURS, b"same-site"}',
        checks.check_the_site,
    ),
    ("every origin is ours", cookies.site_of, "if _bare(authority, scheme) in ours", "if ours", checks.check_the_site),
    (
        "others sign in",
        sessions.session_routes,
        'if site_of(request.scope["headers"]) is Site.OTHER',
        "if False",
        checks.check_the_sign_in,
    ),
    (
        "a planted cookie counts",
        cookies.session_tokens,
        "sure or plain",
        "plain or sure",
        checks.check_a_planted_cookie,
    ),
    (
        "any key ends any session",
        sessions._key_filter,
        "caller.role >= Role.ADMIN",
        "True",
        checks.check_sessions_are_their_keys,
    ),
    ("two cookies are one", auth.caller_of, " or len(shown) > 1", "", checks.check_one_cookie),
    (
        "keys can be guessed",
        auth.RateBound.count,
        "if due_s - now_s > self._burst_s",
        "if False",
        checks.check_bad_keys_are_limited,
    ),
    ("one nonce for all", page.Page._index, "random_token(NONCE_BYTES)", '"A" * 24', checks.check_the_policy),
    ("the nonce is kept", page.Page._index, "NEVER", "REVALIDATE", checks.check_the_policy),
    ("styles need no nonce", page.policy, "'nonce-{nonce}'", "'unsafe-inline'", checks.check_the_policy),
    (
        "inline scripts run",
        page.policy,
        "script-src 'self'",
        "script-src 'self' 'unsafe-inline'",
        checks.check_the_policy,
    ),
    ("every site frames it", page.policy, "frame-ancestors 'none'", "frame-ancestors *", checks.check_the_policy),
    ("no role is checked", gate.check_role, "if caller.role < role", "if False", checks.check_roles),
    ("no route checks a role", gate.ApiGate.allow, "check_role(caller, role, scope)", "pass", checks.check_roles),
    ("the fast path checks no role", lane.post_job, "Role.OPERATOR", "Role.VIEWER", checks.check_roles),
    (
        "all see data of users",
        app.Api._authenticate,
        "set_sight(allowed=caller.rank >= self._context.payloads_from, whole=caller.rank >= Role.OPERATOR)",
        "pass",
        checks.check_hiding,
    ),
    (
        "nothing is hidden",
        user_data.shown,
        "if seen.data and seen.whole else _without(value, seen)",
        "",
        checks.check_hiding,
    ),
    (
        "addresses are shown whole",
        user_data.set_sight,
        "Sight(allowed, whole)",
        "Sight(allowed, True)",
        checks.check_masking,
    ),
    (
        "lists are not hidden",
        user_data._without,
        "[_without(item, seen) for item in value]",
        "value",
        checks.check_hiding,
    ),
    (
        "JSON that is copied is shown whole",
        user_data._without,
        "if seen.whole else msgspec.Raw(masked_tokens(bytes(value)))",
        "",
        checks.check_masking_of_alerts,
    ),
    ("streams hide nothing", Snapshots._message, "shown(view, sight)", "view", checks.check_masking_of_streams),
    (
        "problems hide nothing",
        problems.problem,
        "shown(error.message)",
        "error.message",
        checks.check_masking_of_problems,
    ),
    (
        "details of problems hide nothing",
        problems.problem,
        "shown(details)",
        "details",
        checks.check_masking_of_problems,
    ),
    ("hidden data is found", job_routes._filter, "sight().data", "True", checks.check_hiding),
    ("masked addresses are found", job_routes._filter, "sight().whole", "True", checks.check_masking_of_searches),
    ("reads are not bound", app.Api._bounds, "if is_endless(path)", "if True", checks.check_reads_are_bound),
    ("statements are not bound", bounds.run_within, "if left is None or", "if True or", checks.check_reads_are_bound),
    ("a bound outlives its request", bounds.within, "bound.over = True", "pass", checks.check_what_outlives_is_free),
    (
        "every caller queries",
        Snapshots._refresh_if_due,
        "if monotonic() - self._refreshed_s >= self._rest_s",
        "if True",
        checks.check_one_query_for_all,
    ),
    (
        "it queries without a pause",
        Snapshots._refresh,
        "max(self._every_s, (self._refreshed_s - began_s) / SHARE_OF_TIME)",
        "0",
        checks.check_one_query_for_all,
    ),
    (
        "it queries without readers",
        Snapshots._is_wanted,
        "bool(self._subscribers) or",
        "True or",
        checks.check_no_query_without_readers,
    ),
    (
        "it queries while a query runs",
        Snapshots._refresh,
        "if self._reading is None",
        "if True",
        checks.check_one_question_at_a_time,
    ),
    ("a stream outlives its key", Snapshots._take, "subscriber.end()", "pass", checks.check_streams_end_with_their_key),
    (
        "streams of a key are not counted",
        Snapshots.subscribe,
        "if key_id is not None and",
        "if False and",
        checks.check_each_key_has_its_share_of_streams,
    ),
    (
        "a rotated key never ends",
        ApiKeys.rotate,
        '_SQL["succeed"]',
        '_SQL["succeed"].replace("::interval, expires_at)", "::interval, NULL)")',
        checks.check_a_rotated_key_keeps_its_end,
    ),
]


async def test_every_check_holds_as_it_is(database_url: str, tmp_path: Path) -> None:
    """None of them fails on the real source."""
    async with guarded(database_url, tmp_path) as api:
        await checks.check_the_page_can_act(api)
        for check in dict.fromkeys(mutant[-1] for mutant in MUTANTS):
            await check(api)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant[0] for mutant in MUTANTS])
async def test_a_missing_guard_is_found(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: tuple[str, Any, str, str, Check]
) -> None:
    """A process that starts with the mutant fails the check of the guard's promise."""
    _, function, guard, instead, check = mutant
    mutate(monkeypatch, function, guard, instead)
    async with guarded(database_url, tmp_path) as api:
        with pytest.raises(AssertionError, match="broken"):
            await check(api)
