"""Facts of arguments: what the schema declares, from canonical values; a name is looked up only when it matters."""

from pathlib import Path
from typing import Annotated, Any, Literal

import cedarpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_world import CALM
from pydantic import Field

from agentops.act import Cents, Context, Domain, Email, FilePath, Url, tool
from agentops.act.tool import arguments
from agentops.errors import PolicyError, ToolError
from agentops.parsers import ip_address
from agentops.policy import PolicySet, generate_schema
from agentops.policy.arguments import argument_facts, argument_types, arguments_of, spelled, urls
from agentops.types import AgentSpec, Decision, Principal, Run, ToolCall

Ticket = Annotated[str, Field(pattern=r"^T-\d{3}$")]


@tool(effect="egress", scopes={"net:use"}, timeout_s=1, pack="net")
async def fetch(ctx: Context, url: Url, mirror: Url | None = None) -> dict:
    """Read a page."""
    return {}


@tool(effect="write", scopes={"net:use"}, timeout_s=1, pack="net")
async def file_it(
    ctx: Context,
    to: Email,
    path: Annotated[str, FilePath("/workspace")],
    fee: Cents,
    ticket: Ticket,
    cc: list[Email] = [],  # noqa: B006
    site: Domain | None = None,
    kind: Literal["a", "b"] = "a",
    note: str = "",
    extra: dict[str, Any] = {},  # noqa: B006
    home_email: str | None = None,
) -> dict:
    """File a report."""
    return {}


TOOLS = {one.spec.name: one.spec for one in (fetch, file_it)}
AGENT = AgentSpec("net", frozenset(TOOLS), frozenset({"net:use"}), max_calls=1000)
CEDAR = """
@id("net") permit (principal, action == Action::"fetch", resource)
when { context.args.url_scheme == "https" && context.args.url_host like "*.corp.example" };

@id("public") forbid (principal, action == Action::"fetch", resource)
unless { context.args.url_public || context.args.url_host == "wiki.corp.example" };

@id("slow") @advice("approval:staff")
forbid (principal, action == Action::"fetch", resource) when { context.args.url_path like "/large/*" };

@id("files") permit (principal, action == Action::"file_it", resource)
when { context.args.path like "/workspace/reports/*" && context.args.to_domain == "corp.example"
  && ["corp.example"].containsAll(context.args.cc_domains) && context.args.fee < 10000 };
"""
FILING = {"to": "a@corp.example", "path": "/workspace/reports/q1.txt", "fee": 5, "ticket": "T-001"}


@pytest.fixture
def net(tmp_path: Path) -> PolicySet:
    (tmp_path / "net.cedar").write_text(CEDAR)
    return PolicySet.load(tmp_path, TOOLS, {"net": AGENT})


def run() -> Run:
    return Run("r", "s", Principal("t", "u", frozenset({"net:use"})), AGENT, 1e12)


def decide(net: PolicySet, name: str, given: dict[str, Any], **facts: Any) -> Decision:
    return net.decide(run(), ToolCall("c", name, given), TOOLS[name], {**CALM, **facts})


def hosts(net: PolicySet, url: str, **facts: Any) -> dict[str, str]:
    call = ToolCall("c", "fetch", arguments(fetch, {"url": url}))
    return {name: one.endpoint for name, one in net.hosts(run(), call, fetch.spec, {**CALM, **facts}).items()}


# ------------------------------------------------------------------ the canonical value is decided on and handed over


def test_the_tool_gets_the_canonical_value() -> None:
    given = {
        "to": "Ann@Corp.EXAMPLE",
        "path": "/workspace/./reports//q1.txt",
        "fee": 5,
        "ticket": "T-001",
        "cc": ["B@Corp.Example"],
        "site": "WWW.Corp.Example.",
        "home_email": "Me@Home.Example",
    }
    found = arguments(file_it, given)
    assert found["to"] == "Ann@corp.example"
    assert found["path"] == "/workspace/reports/q1.txt"
    assert found["cc"] == ["B@corp.example"]
    assert found["site"] == "www.corp.example"
    assert found["home_email"] == "Me@home.example", "by its name alone"
    assert arguments(file_it, found) == found
    assert arguments(fetch, {"url": "HTTPS://API.corp.example:443/a/../b#x"})["url"] == "https://api.corp.example/b"


@pytest.mark.parametrize(
    "wrong",
    [
        {"to": "a@evil.test@corp.example"},
        {"to": None},
        {"path": "/workspace/reports/../../etc/passwd"},
        {"path": "/etc/passwd"},
        {"fee": True},
        {"fee": 5.0},
        {"fee": "5"},
        {"fee": 2**53},
        {"fee": -(2**53)},
        {"fee": float("nan")},
        {"fee": 10**400},
        {"cc": ["a@corp.example", "b@evil.test@corp.example"]},
        {"cc": "a@corp.example"},
        {"site": "ex\u0430mple.com"},
        {"home_email": "a@b"},
        {"kind": "A"},
        {"kind": "a\u200b"},
        {"ｔｏ": "a@corp.example"},
        {"to\u200b": "a@corp.example"},
        {"__entity": {"type": "Run", "id": "run"}},
    ],
)
def test_what_a_tool_never_gets(wrong: dict[str, Any]) -> None:
    with pytest.raises(ToolError) as caught:
        arguments(file_it, {**FILING, **wrong})
    assert "evil" not in str(caught.value)
    assert "passwd" not in str(caught.value)


def test_a_default_is_spelled_canonically_too() -> None:
    @tool(effect="read", scopes={"a:b"}, timeout_s=1, pack="p")
    async def ask(ctx: Context, site: Domain = "Example.COM.") -> dict:
        """Ask."""
        return {}

    assert arguments(ask, {}) == {"site": "example.com"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"to": "a@Corp.example"},
        {"to": "a@evil.test@corp.example"},
        {"path": "/workspace/reports/../../etc/passwd"},
        {"path": "/workspace/reports//x"},
        {"path": "/etc/passwd"},
        {"fee": 2**53},
        {"fee": True},
        {"fee": "5"},
        {"cc": ["a@Corp.example"]},
        {"cc": [{"__entity": {"type": "Run", "id": "run"}}]},
        {"site": "Example.com"},
        {"ticket": "T-００１"},
        {"ticket": "T-001\u200b"},
        {"ticket": "T-001\x00"},
        {"ticket": "T-\ud800"},
        {"note": "\ud800"},
        {"note": {"__extn": {"fn": "ip", "arg": "1.1.1.1"}}},
        {"to": {"__entity": {"type": "Run", "id": "run"}}},
        {"kind": {"__entity": {"type": "Run", "id": "run"}}},
        {"home_email": "A@B.example"},
        {"surprise": 1},
    ],
)
def test_who_goes_around_the_gateways_parsing_is_denied(net: PolicySet, wrong: dict[str, Any]) -> None:
    assert decide(net, "file_it", {**FILING, "cc": []}).effect == "allow"
    decision = decide(net, "file_it", {**FILING, "cc": [], **wrong})
    assert (decision.effect, decision.policies) == ("deny", ("malformed-call",))
    assert "evil" not in decision.reason


@pytest.mark.parametrize("note", ["\u202eevil", "a\x00b", "ｆｕｌｌ", "e\u0301", "a\u200bb", '{"__entity": 1}', "\r\n"])
def test_free_text_stays_as_it_is(net: PolicySet, note: str) -> None:
    given = arguments(file_it, {**FILING, "note": note})
    assert given["note"] == note
    assert argument_facts(arguments_of(file_it.spec), given, {})["note"] == note
    assert decide(net, "file_it", given).effect == "allow"


@pytest.mark.parametrize("key", ["__entity", "__extn", "a"])
def test_objects_never_become_facts(net: PolicySet, key: str) -> None:
    given = arguments(file_it, {**FILING, "extra": {key: {"type": "Run", "id": "run"}, "é": 1, "e\u0301": 2}})
    assert "extra" not in argument_facts(arguments_of(file_it.spec), given, {})
    assert decide(net, "file_it", given).effect == "allow"


@pytest.mark.parametrize(
    "over",
    [
        {"path": "/workspace/secret"},
        {"path": "/workspace/reports"},
        {"to": "a@evil.test"},
        {"to": "a@corp.example.evil.test"},
        {"cc": ["a@corp.example", "b@evil.test"]},
        {"fee": 10_000},
    ],
)
def test_policies_decide_on_the_parts(net: PolicySet, over: dict[str, Any]) -> None:
    assert decide(net, "file_it", arguments(file_it, {**FILING, **over})).policies == ("default-deny",)


def test_arguments_of_other_servers_are_spelled_by_their_schema() -> None:
    known = arguments_of(file_it.spec)
    given = {**FILING, "to": "A@Corp.Example", "cc": ["B@X.example"], "other": 1}
    assert spelled(known, given) == {**FILING, "to": "A@corp.example", "cc": ["B@x.example"], "other": 1}
    with pytest.raises(PolicyError, match="'to'"):
        spelled(known, {"to": "a@b@c.example"})


# ------------------------------------------------------------------ web addresses


ANYWHERE = {"url": ["93.184.216.34"]}


def test_facts_of_a_web_address() -> None:
    given = arguments(fetch, {"url": "https://api.corp.example:8443/v1?q=1"})
    facts = argument_facts(arguments_of(fetch.spec), given, {"url": ["93.184.216.34", "2606:4700::1111"]})
    assert facts == {
        "url": "https://api.corp.example:8443/v1?q=1",
        "url_address": {"__extn": {"fn": "ip", "arg": "93.184.216.34"}},
        "url_host": "api.corp.example",
        "url_path": "/v1",
        "url_port": 8443,
        "url_public": True,
        "url_scheme": "https",
    }


@pytest.mark.parametrize(
    "addresses",
    [["10.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["93.184.216.34", "::ffff:169.254.169.254"], ["93.184.216.34", "x"]],
)
def test_every_address_of_a_host_must_be_public(net: PolicySet, addresses: list[str]) -> None:
    given = arguments(fetch, {"url": "https://api.corp.example/"})
    assert decide(net, "fetch", given, addresses=ANYWHERE).effect == "allow"
    assert decide(net, "fetch", given, addresses={"url": addresses}).policies == ("public",)
    inside = arguments(fetch, {"url": "https://wiki.corp.example/"})
    assert decide(net, "fetch", inside, addresses={"url": addresses}).effect == "allow", "where a policy says so"


@pytest.mark.parametrize(
    "addresses",
    [{}, {"url": []}, {"url": "93.184.216.34"}, {"url": ["a"]}, {"url": [1]}, {"url": ["1.1.1.1"] * 65}, [], 1],
)
def test_a_host_that_was_not_found_is_denied(net: PolicySet, addresses: Any) -> None:
    given = arguments(fetch, {"url": "https://api.corp.example/"})
    assert decide(net, "fetch", given, addresses=addresses).effect == "deny"


def test_what_would_be_denied_anyway_is_not_looked_up(net: PolicySet) -> None:
    """A lookup tells the name to whoever serves its domain: `https://the-secret.evil.test/` must not ask anyone."""
    assert hosts(net, "https://the-secret.evil.test/") == {}
    given = arguments(fetch, {"url": "https://the-secret.evil.test/"})
    assert decide(net, "fetch", given).policies == ("default-deny",)
    assert hosts(net, "http://api.corp.example/") == {}
    assert hosts(net, "https://api.corp.example/") == {"url": "api.corp.example:443"}
    assert decide(net, "fetch", arguments(fetch, {"url": "https://api.corp.example/"})).policies == ("unknown-host",)
    assert hosts(net, "https://api.corp.example/", addresses=ANYWHERE) == {}, "already known"
    assert hosts(net, "https://wiki.corp.example:8443/") == {"url": "wiki.corp.example:8443"}


def test_a_person_is_asked_before_a_name_is_looked_up(net: PolicySet) -> None:
    url = "https://api.corp.example/large/x"
    given = arguments(fetch, {"url": url})
    assert hosts(net, url) == {}
    assert decide(net, "fetch", given).effect == "approve"
    assert hosts(net, url, approved="staff") == {"url": "api.corp.example:443"}
    assert decide(net, "fetch", given, approved="staff").policies == ("unknown-host",)
    assert decide(net, "fetch", given, approved="staff", addresses=ANYWHERE).effect == "allow"
    assert decide(net, "fetch", given, approved="staff", addresses={"url": ["10.0.0.1"]}).effect == "deny"


def test_an_address_needs_no_lookup(net: PolicySet, tmp_path: Path) -> None:
    (tmp_path / "net.cedar").write_text(
        '@id("any") permit (principal, action == Action::"fetch", resource) when { context.args.url_public };'
    )
    anyone = PolicySet.load(tmp_path, TOOLS, {"net": AGENT})
    for url, effect in (
        ("https://93.184.216.34/", "allow"),
        ("http://169.254.169.254/latest/meta-data/", "deny"),
        ("http://[::ffff:127.0.0.1]/", "deny"),
        ("http://[64:ff9b::a9fe:a9fe]/", "deny"),
    ):
        given = arguments(fetch, {"url": url})
        assert hosts(anyone, url) == {}
        assert decide(anyone, "fetch", given).effect == effect
        lied = decide(anyone, "fetch", given, addresses={"url": ["93.184.216.34"]})
        assert lied.effect == effect, "what the host says is not what somebody looked up"


def test_a_policy_on_the_address_itself(tmp_path: Path) -> None:
    (tmp_path / "net.cedar").write_text(
        '@id("inside") permit (principal, action == Action::"fetch", resource)\n'
        'when { context.args.url_address.isInRange(ip("10.1.0.0/16")) };'
    )
    inside = PolicySet.load(tmp_path, TOOLS, {"net": AGENT})
    given = arguments(fetch, {"url": "http://build:8080/"})
    assert hosts(inside, "http://build:8080/") == {"url": "build:8080"}
    assert decide(inside, "fetch", given, addresses={"url": ["10.1.2.3"]}).effect == "allow"
    assert decide(inside, "fetch", given, addresses={"url": ["10.2.2.3"]}).effect == "deny"


def test_two_web_addresses_each_have_their_own_answer(net: PolicySet) -> None:
    given = arguments(fetch, {"url": "https://api.corp.example/", "mirror": "https://mirror.test/"})
    call = ToolCall("c", "fetch", given)
    assert set(net.hosts(run(), call, fetch.spec, CALM)) == {"url", "mirror"}
    both = {**ANYWHERE, "mirror": ["10.0.0.1"]}
    assert decide(net, "fetch", given, addresses=both).effect == "allow", "no policy minds where the mirror is"
    assert decide(net, "fetch", given, addresses=ANYWHERE).policies == ("malformed-call",)


def test_a_web_address_inside_something_else_is_refused_when_policies_load() -> None:
    @tool(effect="read", scopes={"a:b"}, timeout_s=1, pack="p")
    async def listed(ctx: Context, links: list[Url]) -> dict:
        """Read."""
        return {}

    @tool(effect="read", scopes={"a:b"}, timeout_s=1, pack="p")
    async def nested(ctx: Context, links: dict[str, Url]) -> dict:
        """Read."""
        return {}

    @tool(effect="read", scopes={"a:b"}, timeout_s=1, pack="p")
    async def either(ctx: Context, link: Url | int) -> dict:
        """Read."""
        return {}

    for one in (listed, nested, either):
        with pytest.raises(PolicyError, match="an argument of its own"):
            generate_schema({one.spec.name: one.spec}, {})


def test_derived_names_do_not_collide() -> None:
    @tool(effect="read", scopes={"a:b"}, timeout_s=1, pack="p")
    async def one(ctx: Context, url: Url, url_host: str) -> dict:
        """Read."""
        return {}

    with pytest.raises(PolicyError, match="'url_host' is the host fact of 'url'"):
        argument_types(one.spec)


def test_a_narrower_web_address_is_still_one() -> None:
    @tool(effect="read", scopes={"a:b"}, timeout_s=1, pack="p")
    async def one(ctx: Context, link: Annotated[Url, Field(pattern="^https://", description="x")]) -> dict:
        """Read."""
        return {}

    assert argument_types(one.spec)["link_public"] == "Bool"
    assert set(urls(arguments_of(one.spec), arguments(one, {"link": "https://a.test/"}))) == {"link"}


# ------------------------------------------------------------------ property: facts are what the schema declares


CEDAR_VALUES = {"String": str, "Long": int, "Bool": bool}
VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.lists(st.text(max_size=4), max_size=2)
)
TEXTS = st.sampled_from(
    ["a@corp.example", "https://a.test/", "http://10.0.0.1:8080/x", "/workspace/a", "corp.example", "T-001", "a", ""]
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(TOOLS)),
    st.dictionaries(
        st.sampled_from(["url", "mirror", "to", "path", "fee", "ticket", "cc", "site", "note", "home_email"]),
        VALUES | TEXTS,
    ),
    st.dictionaries(st.sampled_from(["url", "mirror"]), st.lists(st.sampled_from(["1.1.1.1", "10.0.0.1", "x"]))),
)
def test_facts_have_the_names_and_types_of_the_schema(name: str, given: dict, addresses: dict) -> None:
    declared = {fact.removesuffix("?"): kind for fact, kind in argument_types(TOOLS[name]).items()}
    try:
        facts = argument_facts(arguments_of(TOOLS[name]), given, addresses)
    except PolicyError:
        return
    for fact, value in facts.items():
        kind = declared[fact]
        if kind == "ipaddr":
            assert list(value) == ["__extn"]
            assert ip_address(value["__extn"]["arg"]) == value["__extn"]["arg"]
        elif kind.startswith("Set<"):
            assert all(type(item) is CEDAR_VALUES[kind[4:-1]] for item in value)
        else:
            assert type(value) is CEDAR_VALUES[kind]


def test_the_schema_of_every_kind_parses() -> None:
    cedarpy.Schema.from_str(generate_schema(TOOLS, {"net": AGENT}))
