"""Roles, principals and API keys."""

import asyncio
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from idp_world import jwks

from agentops.errors import PolicyError
from agentops.graph import VirtualClock
from agentops.policy import UNLIMITED, ApiKeys, DailyLimits, delegated, identities, narrowed, principal, renewed
from agentops.policy.identity import identity_problems

KEY = "desk:0123456789abcdef:default:C-1:customer"


def test_roles_give_their_scopes_and_defaults_apply(policies: Path) -> None:
    customer = principal(policies, "default", "C-1")
    assert customer.roles == {"customer"}
    assert "refunds:write" in customer.scopes
    both = principal(policies, "default", "E-1", ["staff", "finance"])
    assert both.scopes == {"orders:read", "approvals:decide"}
    assert both.roles == {"staff", "finance"}


def test_unknown_roles_and_odd_names_are_refused(policies: Path) -> None:
    with pytest.raises(PolicyError, match=r"'admin' does not exist; .*: customer, finance, staff"):
        principal(policies, "default", "C-1", ["admin"])
    for tenant, user in (("", "C-1"), ("default", ""), ("default", "a b"), ("a/b", "C-1"), ("default", "x" * 65)):
        with pytest.raises(PolicyError, match="not allowed"):
            principal(policies, tenant, user)


def test_a_changed_file_counts_at_once(policies: Path) -> None:
    assert "code:run" not in principal(policies, "default", "C-1").scopes
    file = policies / "identities.toml"
    file.write_text(file.read_text().replace('"documents:send"]', '"documents:send", "code:run"]'))
    assert "code:run" in principal(policies, "default", "C-1").scopes


def test_rights_that_were_taken_away_are_gone_for_what_waits_too(policies: Path) -> None:
    file = policies / "identities.toml"
    before = file.read_text()
    file.write_text(before + '[actors.bot]\nscopes = ["orders:read", "refunds:write"]\n')
    asked = delegated(identities(policies), principal(policies, "default", "C-1"), ["bot"])
    assert renewed(policies, asked) == asked
    assert renewed(policies, narrowed(asked, ["orders:read"])).scopes == {"orders:read"}, "nothing comes back"
    file.write_text(before + '[actors.bot]\nscopes = ["orders:read"]\n')
    assert renewed(policies, asked).scopes == {"orders:read"}
    file.write_text(before.replace('"refunds:write", ', "") + '[actors.bot]\nscopes = ["refunds:write"]\n')
    assert renewed(policies, asked).scopes == frozenset()
    file.write_text(before + '[actors.other]\nscopes = ["orders:read"]\n')
    with pytest.raises(PolicyError, match="actor 'bot'"):
        renewed(policies, asked)
    file.write_text(before)
    staff = principal(policies, "default", "E-1", ["staff"])
    file.write_text(before.replace("[roles.staff]", "[roles.clerk]"))
    with pytest.raises(PolicyError, match="'staff' does not exist"):
        renewed(policies, staff)


def test_daily_limits_are_read(policies: Path) -> None:
    file = policies / "identities.toml"
    before = file.read_text()
    file.write_text(before + "[limits]\ncalls_per_day = 7\nmoney_cents_per_day = 300\n")
    limits = identities(policies).limits
    assert (limits.user.calls, limits.user.money_cents, limits.user.tokens) == (7, 300, DailyLimits().tokens)
    assert limits.tenant == UNLIMITED
    file.write_text(before + "[limits]\nseconds_per_day = 9\n[limits.tenant]\ntokens_per_day = 5\ncalls_per_day = 0\n")
    limits = identities(policies).limits
    assert (limits.user.seconds, limits.tenant.tokens, limits.tenant.calls) == (9, 5, 0)
    assert limits.tenant.money_cents == UNLIMITED.money_cents


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[roles.customer\n", 1, "not valid TOML"),
        ('[roles.customer]\nscopes = "all"\n', 1, "list of texts"),
        ('[roles.customer]\nscopes = ["*"]\n', 1, "list of texts"),
        ('[roles.customer]\nscope = ["a:b"]\n', 1, "'scope' is not known"),
        ('[roles.customer]\nscopes = ["nothing:needs"]\n', 1, "which no tool needs"),
        ('[roles.x]\nscopes = []\napprover = "yes"\n', 1, "true or false"),
        ('[roles.x]\nscopes = []\n\n[defaults]\nroles = ["y"]\n', 4, "'y' is not defined"),
        ("[roles.x]\nscopes = []\n[limits]\ncalls_per_day = -1\n", 3, "whole numbers"),
        ("[roles.x]\nscopes = []\n[limits]\ncalls = 1\n", 3, "whole numbers"),
        ("[roles.x]\nscopes = []\n[limits]\ntenant = 1\n", 0, "limits.tenant"),
        ("[roles.x]\nscopes = []\n[limits.tenant]\ntokens_per_day = 1.5\n", 3, "limits.tenant"),
        ("[people.x]\n[roles.x]\nscopes = []\n", 0, "[people] is not known"),
        ("", 0, "has no role"),
        ("[roles.Admin]\nscopes = []\n", 1, "lower-case name"),
    ],
)
def test_problems_have_their_line(policies: Path, text: str, line: int, message: str) -> None:
    (policies / "identities.toml").write_text(text)
    problems = identity_problems(policies, {"orders:read"})
    assert any(problem.line == line and message in problem.message for problem in problems), problems
    if "no tool needs" not in message:
        with pytest.raises(PolicyError):
            principal(policies, "default", "C-1")


CORP = """
[issuers.corp]
issuer = "https://idp.example.com/"
audience = "agentops"
algorithms = ["ES256"]
jwks = "corp.json"
tenant = "default"
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('["ES256"]', '["ES256", "HS256"]', "not ['HS256']"),
        ('["ES256"]', '["none"]', "not ['none']"),
        ('["ES256"]', "[]", "algorithms must be"),
        ('["ES256"]', '"ES256"', "algorithms must be"),
        ('"corp.json"', '"../corp.json"', "beside identities.toml"),
        ('"corp.json"', '"/etc/keys.json"', "beside identities.toml"),
        ('"corp.json"', '"other.json"', "'other.json' is not in"),
        ('jwks = "corp.json"', "", "jwks or jwks_url"),
        ('"corp.json"', '"corp.json"\njwks_url = "https://idp.example.com/keys"', "exactly one"),
        ('jwks = "corp.json"', 'jwks_url = "http://idp.example.com/keys"', "must be an https:// address"),
        ('jwks = "corp.json"', 'jwks_url = "file:///etc/passwd"', "must be an https:// address"),
        ('jwks = "corp.json"', 'jwks_url = "https://a:b@idp.example.com/"', "must be an https:// address"),
        ('"https://idp.example.com/"', '"idp.example.com"', "must be an https:// address"),
        ('audience = "agentops"', "", "audience is missing"),
        ('"agentops"', '""', "audience must be a text"),
        ('"agentops"', "[]", "audience must be a text"),
        ('tenant = "default"', "", "tenant or tenant_claim"),
        ('"default"', '"default"\ntenant_claim = "org"', "tenant or tenant_claim"),
        ('"default"', '"a b"', "is not allowed"),
        ('"default"', '"default"\nleeway_s = 61', "from 0 to 60"),
        ('"default"', '"default"\nleeway_s = true', "from 0 to 60"),
        ('"default"', '"default"\nroles_claim = "groups"', "belong together"),
        ('"default"', '"default"\nroles = { a = "staff" }', "belong together"),
        ('"default"', '"default"\nroles_claim = "groups"\nroles = { a = "admin" }', "'admin' is not defined"),
        ('"default"', '"default"\nsecret = "x"', "'secret' is not known"),
        ('"default"', '"default"\n[tenants.acme]', "'default' is not listed in [tenants]"),
        ('"default"', '"default"\n[tenants.default]\nissuers = []', "does not list 'corp'"),
        ("[issuers.corp]", "[issuers.Corp]", "lower-case name"),
    ],
)
def test_problems_of_an_issuer_have_their_line(policies: Path, old: str, new: str, message: str) -> None:
    file = policies / "identities.toml"
    (policies / "corp.json").write_text(jwks("ES256"))
    before = file.read_text()
    file.write_text(before + CORP)
    assert identity_problems(policies) == []
    file.write_text(before + CORP.replace(old, new))
    line = len(before.splitlines()) + 2
    problems = identity_problems(policies)
    assert any(problem.line == line and message in problem.message for problem in problems), problems
    with pytest.raises(PolicyError):
        principal(policies, "default", "C-1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CORP + CORP.replace(".corp]", ".lab]"), "the issuer of two tables"),
        ("[tenants.acme]\nissuers = ['nobody']\n", "names of [issuers.NAME]"),
        ("[tenants.'a b']\n", "tenant 'a b' is a table"),
        ("[tenants]\n", "without any, every tenant is known"),
        ("[actors.bot]\n", "actor 'bot' is a table with scopes"),
        ("[actors.bot]\nscopes = ['all']\n", "list of texts"),
        ("[actors.bot]\nscopes = ['nothing:needs']\n", "actor 'bot' has scope 'nothing:needs', which no tool needs"),
        ("[actors.'bot.x']\nscopes = 1\n", "actor 'bot.x'"),
        ("[actors]\nbot = 1\n", "actor 'bot' is a table"),
    ],
)
def test_problems_of_tenants_and_actors_are_found(policies: Path, text: str, message: str) -> None:
    file = policies / "identities.toml"
    (policies / "corp.json").write_text(jwks("ES256"))
    file.write_text(file.read_text() + text)
    found = identity_problems(policies, {"orders:read", "orders:write", "refunds:write", "documents:send"})
    assert any(message in problem.message for problem in found), found
    named = [problem for problem in found if message in problem.message and "[actors]\n" not in text]
    assert all(problem.line for problem in named), named


def test_with_several_issuers_each_tenant_says_who_may_name_it(policies: Path) -> None:
    """Otherwise any of them could name the tenants of the others."""
    file = policies / "identities.toml"
    (policies / "corp.json").write_text(jwks("ES256"))
    claimed = CORP.replace('tenant = "default"', 'tenant_claim = "org"')
    other = CORP.replace(".corp]", ".lab]").replace("idp.", "lab.")
    before = file.read_text()
    for tenants in ("", "[tenants.default]\n", "[tenants.default]\n[tenants.acme]\nissuers = ['corp']\n"):
        file.write_text(before + claimed + other + tenants)
        assert any("needs [tenants.NAME] with issuers" in one.message for one in identity_problems(policies))
    file.write_text(
        before + claimed + other + "[tenants.default]\nissuers = ['lab']\n[tenants.x]\nissuers = ['corp']\n"
    )
    assert identity_problems(policies) == []


def test_a_fault_of_an_issuer_is_told_once(policies: Path) -> None:
    file = policies / "identities.toml"
    faulty = CORP.replace("ES256", "HS256")
    file.write_text(file.read_text() + faulty + "[tenants.default]\nissuers = ['corp']\n")
    [problem] = identity_problems(policies)
    assert "HS256" in problem.message


def test_listed_tenants_are_all_there_are(policies: Path) -> None:
    assert principal(policies, "acme", "C-1").tenant == "acme"
    file = policies / "identities.toml"
    file.write_text(file.read_text() + "[tenants.default]\n")
    assert principal(policies, "default", "C-1").tenant == "default"
    with pytest.raises(PolicyError, match=r"tenant 'acme' is not in identities.toml: add \[tenants.acme\]"):
        principal(policies, "acme", "C-1")
    with pytest.raises(PolicyError, match="'acme'"):
        ApiKeys.parse("desk:0123456789abcdef:acme:C-1", policies)


def test_the_examples_in_the_reference_projects_file_are_true(repo: Path, policies: Path) -> None:
    text = (repo / "policies" / "identities.toml").read_text()
    _, mark, example = text.partition("# Example:")
    assert mark
    lines = [line.removeprefix("# ") for line in example.splitlines()[1:]]
    (policies / "identities.toml").write_text(text + "\n".join(lines))
    (policies / "corp.json").write_text(jwks("ES256"))
    assert identity_problems(policies) == []
    found = identities(policies)
    assert found.issuers
    assert found.actors
    assert found.tenants


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"identities\.toml is missing"):
        principal(tmp_path, "default", "C-1")
    assert "is missing" in identity_problems(tmp_path)[0].message


def test_a_key_names_its_principal(policies: Path) -> None:
    keys = ApiKeys.parse(f"{KEY}, ops:fedcba9876543210:acme:E-7:staff+finance", policies)
    found = keys.authenticate("Bearer desk:0123456789abcdef")
    assert found is not None
    assert (found.tenant, found.user, found.roles) == ("default", "C-1", {"customer"})
    assert "orders:read" in found.scopes
    assert keys.authenticate("bearer ops:fedcba9876543210").tenant == "acme"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer desk",
        "Bearer desk:",
        "Bearer desk:0123456789abcdeF",
        "Bearer desk:0123456789abcdef0",
        "Bearer other:0123456789abcdef",
        "Bearer :0123456789abcdef",
        "Basic desk:0123456789abcdef",
        "desk:0123456789abcdef",
        "Bearer desk:\ud800",
        "Bearer desk:" + "x" * 100_000,
        "Bearer 0123456789abcdef",
    ],
)
def test_anything_else_is_nobody(policies: Path, header: str | None) -> None:
    assert ApiKeys.parse(KEY, policies).authenticate(header) is None


def test_two_keys_live_side_by_side_while_one_is_replaced(policies: Path) -> None:
    old, new = "0123456789abcdef", "newnewnewnewnew1"
    keys = ApiKeys.parse(f"desk:{old}:default:C-1,desk:{new}:default:C-1", policies)
    assert keys.authenticate(f"Bearer desk:{old}") == keys.authenticate(f"Bearer desk:{new}") is not None
    with pytest.raises(PolicyError, match="may have 2 secrets"):
        ApiKeys.parse(",".join(f"desk:{number:016d}:default:C-1" for number in range(3)), policies)
    with pytest.raises(PolicyError, match="same tenant, user and roles"):
        ApiKeys.parse(f"desk:{old}:default:C-1,desk:{new}:default:C-2", policies)


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "desk",
        "desk:0123456789abcdef:default",
        "desk:short:default:C-1",
        "Desk:0123456789abcdef:default:C-1",
        "desk:0123456789abcdef:default:C-1:admin",
        "desk:0123456789abcdef:de fault:C-1",
        "a:b:c:d:e:f",
        "desk:0123456789abcdé\x00f:default:C-1",
    ],
)
def test_malformed_keys_are_refused_without_showing_them(policies: Path, entry: str) -> None:
    with pytest.raises(PolicyError) as caught:
        ApiKeys.parse(entry, policies)
    assert "0123456789" not in str(caught.value)


def test_a_key_ends_after_its_last_day(policies: Path) -> None:
    old, new = "0123456789abcdef", "newnewnewnewnew1"
    clock = VirtualClock(datetime(2027, 1, 31, 23, 59, 59, tzinfo=UTC).timestamp())
    keys = ApiKeys.parse(f"desk:{old}:default:C-1:customer:2027-01-31,desk:{new}:default:C-1:customer", policies, clock)
    assert keys.authenticate(f"Bearer desk:{old}") == keys.authenticate(f"Bearer desk:{new}") is not None
    asyncio.run(clock.drive(clock.sleep(1.0)))
    assert keys.authenticate(f"Bearer desk:{old}") is None
    assert keys.authenticate(f"Bearer desk:{new}") is not None
    default = ApiKeys.parse(f"desk:{old}:default:C-1::2999-12-31", policies).authenticate(f"Bearer desk:{old}")
    assert default is not None
    assert default.roles == {"customer"}


@pytest.mark.parametrize("day", ["", "2027-1-31", "2027-02-30", "31.01.2027", "never", "20270131", "2027-01-31T00"])
def test_a_last_day_that_is_no_date_is_refused(day: str) -> None:
    with pytest.raises(PolicyError, match="API key 1: its last day must be a date") as caught:
        ApiKeys.parse(f"{KEY}:{day}")
    assert "0123456789" not in str(caught.value)


def test_what_a_key_allows_follows_the_file(policies: Path) -> None:
    keys = ApiKeys.parse(KEY, policies)
    file = policies / "identities.toml"
    before = file.read_text()
    file.write_text(before.replace('"documents:send"]', '"documents:send", "code:run"]'))
    found = keys.authenticate("Bearer desk:0123456789abcdef")
    assert found is not None
    assert "code:run" in found.scopes
    for closed in (before.replace("customer", "shopper"), before + "[tenants.acme]\n", "nonsense"):
        file.write_text(closed)
        assert keys.authenticate("Bearer desk:0123456789abcdef") is None
    file.write_text(before)
    assert keys.authenticate("Bearer desk:0123456789abcdef") is not None


def test_without_policies_a_key_has_roles_and_no_scopes() -> None:
    found = ApiKeys.parse(KEY).authenticate("Bearer desk:0123456789abcdef")
    assert found is not None
    assert found.roles == {"customer"}
    assert not found.scopes


@given(st.text(max_size=600))
def test_no_header_raises(header: str) -> None:
    assert ApiKeys.parse(KEY).authenticate(header) is None


def test_an_unknown_id_takes_the_same_path_as_a_wrong_secret() -> None:
    keys = ApiKeys.parse(KEY)

    headers = ("Bearer desk:xxxxxxxxxxxxxxxx", "Bearer nope:xxxxxxxxxxxxxxxx")
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(5000):
        for header, into in zip(headers, times, strict=True):  # in turn, so that a busy machine slows both alike
            start = time.perf_counter()
            keys.authenticate(header)
            into.append(time.perf_counter() - start)
    assert 0.7 < statistics.median(times[0]) / statistics.median(times[1]) < 1.4
