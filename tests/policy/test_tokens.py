"""Tokens of identity providers: what is believed, what is refused, and that nothing in them adds a right."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from idp_world import AUDIENCE, ISSUER, KEYS, STRANGER, TABLES, by_hand, claims, jwk, jwks, mint, pem

from agentops.policy import TokenRefused, Tokens, identities, narrowed, principal
from agentops.policy.identity import identity_problems
from agentops.policy.names import asked_scopes
from agentops.policy.tokens import MAX_TOKEN, principal_of
from agentops.types import Principal

CUSTOMER = {"orders:read", "orders:write", "refunds:write", "documents:send"}
DAY = 86_400


@pytest.fixture
def trusted(policies: Path) -> Path:
    """The policies with one issuer and two actors."""
    file = policies / "identities.toml"
    file.write_text(file.read_text() + '[roles.service]\nscopes = ["orders:read"]\n' + TABLES)
    (policies / "corp.json").write_text(jwks())
    return policies


def let_in(policies: Path, token: str) -> Principal:
    return asyncio.run(Tokens(policies).authenticate(token))


def refused(policies: Path, token: str) -> str:
    with pytest.raises(TokenRefused) as caught:
        let_in(policies, token)
    assert str(caught.value) == f"the token was refused ({caught.value.kind})"  # nothing of the token
    return caught.value.kind


@pytest.mark.parametrize("algorithm", sorted(KEYS))
def test_a_signed_token_is_its_user_in_the_issuers_tenant(trusted: Path, algorithm: str) -> None:
    found = let_in(trusted, mint(algorithm))
    assert found == principal(trusted, "default", "C-1", ["customer"])
    assert found.scopes == CUSTOMER


def test_tenant_user_and_roles_come_from_the_verified_claims(trusted: Path) -> None:
    found = let_in(trusted, mint(sub="E-7", groups=["desk", "money", "unknown"], tenant="acme"))
    assert (found.tenant, found.user, found.roles) == ("default", "E-7", {"staff", "finance"})
    assert "approvals:decide" in found.scopes


def test_what_providers_really_send_is_accepted(trusted: Path) -> None:
    for header in (
        {"typ": "at+jwt"},
        {"typ": "AT+JWT"},
        {"typ": None},
        {"jku": "https://evil.test/keys"},
        {"x5t": "a"},
    ):
        assert let_in(trusted, mint(header=header)).user == "C-1"
    assert let_in(trusted, mint(aud=["other", AUDIENCE])).user == "C-1"
    assert let_in(trusted, mint(groups="shoppers")).roles == {"customer"}
    assert let_in(trusted, mint(exp=int(time.time()) - 2)).user == "C-1"  # within the leeway


def forged() -> dict[str, tuple[str, str]]:
    now = int(time.time())
    good = claims()
    head = {"alg": "EdDSA", "kid": "EdDSA", "typ": "JWT"}
    own = {"kty": "OKP", "crv": "Ed25519", "x": jwk("EdDSA")["x"], "kid": "mine"}
    first, second, third = mint().split(".")
    longer = mint(sub="C-2").split(".")
    return {
        "no algorithm": (by_hand({**head, "alg": "none"}, good), "algorithm"),
        "no algorithm, other case": (by_hand({**head, "alg": "nOnE"}, good), "algorithm"),
        "algorithm that is no text": (by_hand({**head, "alg": ["EdDSA"]}, good), "algorithm"),
        "MAC with the public key": (by_hand({"alg": "HS256", "kid": "RS256"}, good, pem("RS256")), "algorithm"),
        "MAC with no key": (by_hand({"alg": "HS256", "kid": "RS256"}, good, b""), "algorithm"),
        "allowed algorithm, key of another": (by_hand({**head, "alg": "ES256"}, good, key=KEYS["EdDSA"]), "key"),
        "a stranger's key": (mint(key=STRANGER), "signature"),
        "a stranger's key in the header": (mint(header={"jwk": own, "kid": "EdDSA"}, key=STRANGER), "signature"),
        "a stranger's key set": (mint(header={"jku": "https://evil.test/keys"}, key=STRANGER), "signature"),
        "unknown key id": (mint(header={"kid": "other"}), "key"),
        "key id is a path": (mint(header={"kid": "../../../../dev/null"}, key=STRANGER), "key"),
        "key id is a file": (mint(header={"kid": "corp.json"}, key=STRANGER), "key"),
        "key id is a query": (mint(header={"kid": "x' UNION SELECT 'AA"}, key=STRANGER), "key"),
        "key id is long": (mint(header={"kid": "k" * 300}), "key"),
        "key id is a number": (by_hand({**head, "kid": 7}, good, key=KEYS["EdDSA"]), "malformed"),
        "changed payload": (f"{first}.{longer[1]}.{third}", "signature"),
        "no signature": (f"{first}.{second}.", "signature"),
        "other issuer": (mint(iss="https://other.example.com/"), "issuer"),
        "issuer without its slash": (mint(iss=ISSUER.rstrip("/")), "issuer"),
        "issuers in a list": (mint_raw(head, {**good, "iss": [ISSUER]}), "issuer"),
        "other audience": (mint(aud="billing"), "audience"),
        "other audiences": (mint(aud=["billing", "mail"]), "audience"),
        "audience is a number": (mint_raw(head, {**good, "aud": 7}), "audience"),
        "expired": (mint(exp=now - 60), "expired"),
        "not yet": (mint(nbf=now + 3600), "time"),
        "issued in the future": (mint(iat=now + 3600), "time"),
        "issued long ago": (mint(iat=now - 2 * DAY), "age"),
        "exp is infinite": (mint_raw(head, {**good, "exp": float("inf")}), "claims"),
        "exp is a text": (mint_raw(head, {**good, "exp": "tomorrow"}), "claims"),
        "critical extension": (mint(header={"crit": ["exp"], "exp": 1}), "malformed"),
        "critical extension the library knows": (mint_raw({**head, "crit": ["b64"], "b64": True}, good), "header"),
        "compressed": (mint(header={"zip": "DEF"}), "header"),
        "detached": (mint_raw({**head, "b64": False}, good), "malformed"),
        "nested": (mint(header={"cty": "JWT"}), "header"),
        "a token inside": (by_hand({**head, "cty": "JWT"}, mint().encode(), key=KEYS["EdDSA"]), "malformed"),
        "a logout token": (mint(header={"typ": "logout+jwt"}), "header"),
        "type is a number": (by_hand({**head, "typ": 1}, good, key=KEYS["EdDSA"]), "header"),
        "bound to a key of its sender": (mint(cnf={"jkt": "abc"}), "binding"),
        "too large": (mint(padding="x" * MAX_TOKEN), "size"),
        "deep": (by_hand(head, b'{"a":' * 3000 + b"1" + b"}" * 3000)[:8000] + ".x", "malformed"),
        "not JSON": (by_hand(head, b"{"), "malformed"),
        "four parts": (f"{mint()}.x", "malformed"),
        "five parts, encrypted": ("a.b.c.d.e", "malformed"),
        "nothing": ("", "malformed"),
        "dots": ("..", "malformed"),
        "letters of others": ("é.é.é", "malformed"),
        "user missing": (mint(sub=None), "claims"),
        "user with odd letters": (mint(sub="auth0|1"), "user"),
        "user too long": (mint(sub="x" * 65), "user"),
        "no group of ours": (mint(groups=["other"]), "roles"),
        "no groups": (mint(groups=None), "roles"),
        "groups in a table": (mint(groups={"shoppers": True}), "roles"),
        "many groups": (mint(groups=["shoppers", *["x"] * 300]), "roles"),
    }


def mint_raw(header: dict[str, Any], payload: Any) -> str:
    return by_hand(header, payload, key=KEYS["EdDSA"])


FORGED = forged()


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_or_foreign_token_is_refused(trusted: Path, name: str) -> None:
    token, kind = FORGED[name]
    assert refused(trusted, token) == kind


@pytest.mark.parametrize("name", ["exp", "iat", "aud", "sub", "iss"])
def test_every_required_claim_is_required(trusted: Path, name: str) -> None:
    kind = {"iss": "issuer"}.get(name, "claims")
    assert refused(trusted, mint(**{name: None})) == kind


def test_an_algorithm_counts_only_when_the_issuer_lists_it(trusted: Path) -> None:
    file = trusted / "identities.toml"
    file.write_text(file.read_text().replace('"RS256", "PS256", "ES256", "ES384", "EdDSA"', '"ES256"'))
    assert let_in(trusted, mint("ES256")).user == "C-1"
    for other in ("RS256", "EdDSA", "ES384"):
        assert refused(trusted, mint(other)) == "algorithm"


def test_without_a_key_id_only_a_single_key_counts(trusted: Path) -> None:
    assert let_in(trusted, mint("EdDSA", {"kid": None})).user == "C-1"
    (trusted / "corp.json").write_text(json.dumps({"keys": [jwk("EdDSA"), jwk("EdDSA", "other")]}))
    assert refused(trusted, mint("EdDSA", {"kid": None})) == "key"
    assert let_in(trusted, mint("EdDSA")).user == "C-1"


def test_an_issuer_speaks_for_itself_only(trusted: Path) -> None:
    """The key of one issuer, which a second one's tenant must not trust."""
    file = trusted / "identities.toml"
    second = TABLES.split("[actors")[0].replace("corp", "lab").replace("idp.example", "lab.example")
    file.write_text(file.read_text() + second.replace('tenant = "default"', 'tenant = "lab"'))
    (trusted / "lab.json").write_text(jwks("ES256"))
    assert let_in(trusted, mint("ES256", iss="https://lab.example.com/")).tenant == "lab"
    assert refused(trusted, mint("EdDSA", iss="https://lab.example.com/")) == "key"
    assert refused(trusted, mint("EdDSA", {"kid": "ES256"}, iss="https://lab.example.com/")) == "key"


def test_a_tenant_claim_names_only_tenants_open_to_its_issuer(trusted: Path) -> None:
    file = trusted / "identities.toml"
    text = file.read_text().replace('tenant = "default"', 'tenant_claim = "org"')
    file.write_text(text)
    assert let_in(trusted, mint(org="acme")).tenant == "acme"
    for odd in (None, 7, ["acme"], "a b", ""):
        assert refused(trusted, mint(org=odd)) in ("tenant", "user")
    file.write_text(text + "[tenants.acme]\n[tenants.globex]\nissuers = []\n")
    assert let_in(trusted, mint(org="acme")).tenant == "acme"
    for closed in ("globex", "default", "other"):
        assert refused(trusted, mint(org=closed)) == "tenant"


def test_an_address_is_a_user_only_when_the_issuer_verified_it(trusted: Path) -> None:
    file = trusted / "identities.toml"
    file.write_text(file.read_text().replace('jwks = "corp.json"', 'jwks = "corp.json"\nuser_claim = "email"'))
    assert let_in(trusted, mint(email="jo@corp.example", email_verified=True)).user == "jo@corp.example"
    for verified in (None, False, "true", 1):
        assert refused(trusted, mint(email="jo@corp.example", email_verified=verified)) == "user"


def test_without_a_roles_claim_users_have_the_default_roles(trusted: Path) -> None:
    file = trusted / "identities.toml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith(("roles_claim", "roles = { "))]
    file.write_text("\n".join(lines))
    assert let_in(trusted, mint(groups=["money"])).roles == {"customer"}


def test_a_service_acts_for_users_and_alone_for_nobody(trusted: Path) -> None:
    file = trusted / "identities.toml"
    file.write_text(file.read_text().replace('money = "finance"', 'money = "finance", bots = "service"'))
    assert refused(trusted, mint(sub="frontend", groups=["bots"])) == "service"
    assert refused(trusted, mint(sub="frontend", groups=["bots", "shoppers"])) == "service"
    assert refused(trusted, mint(groups=["bots"], act={"sub": "frontend"})) == "roles"
    both = let_in(trusted, mint(groups=["bots", "shoppers"], act={"sub": "frontend"}))
    assert both.roles == {"customer"}


def test_an_actor_leaves_the_user_only_what_it_may_use_itself(trusted: Path) -> None:
    found = let_in(trusted, mint(act={"sub": "frontend"}))
    assert (found.user, found.actors, found.scopes) == ("C-1", ("frontend",), {"orders:read", "orders:write"})
    nested = let_in(trusted, mint(act={"sub": "planner@corp", "iss": ISSUER, "act": {"sub": "frontend"}}))
    assert (nested.actors, nested.scopes) == (("planner@corp", "frontend"), {"orders:read"})
    decides = {"groups": ["desk"]}
    assert "approvals:decide" in let_in(trusted, mint(**decides, act={"sub": "frontend"})).scopes
    assert "approvals:decide" not in let_in(trusted, mint(**decides, act={"sub": "planner@corp"})).scopes


def chain(depth: int) -> dict[str, Any]:
    return {"sub": "frontend", **({"act": chain(depth - 1)} if depth > 1 else {})}


@pytest.mark.parametrize(
    "act",
    [
        chain(5),
        chain(50),
        {"sub": "unknown"},
        {"sub": "frontend", "act": {"sub": "unknown"}},
        {"sub": "frontend", "iss": "https://other.example.com/"},
        {"sub": ["frontend"]},
        {"client_id": "frontend"},
        {},
        "frontend",
        ["frontend"],
        False,
    ],
)
def test_an_actor_that_is_unknown_malformed_or_too_deep_is_refused(trusted: Path, act: Any) -> None:
    assert len(let_in(trusted, mint(act=chain(4))).actors) == 4
    assert refused(trusted, mint_raw({"alg": "EdDSA", "kid": "EdDSA"}, claims() | {"act": act})) == "actor"
    assert refused(trusted, mint_raw({"alg": "EdDSA", "kid": "EdDSA"}, claims() | {"act": None})) == "actor"


def test_the_scopes_of_a_token_only_take_away(trusted: Path) -> None:
    assert let_in(trusted, mint(scope="orders:read documents:send")).scopes == {"orders:read", "documents:send"}
    assert let_in(trusted, mint(scp=["orders:read", "code:run"])).scopes == {"orders:read"}
    assert let_in(trusted, mint(scope="orders:read", scp="documents:send")).scopes == set()
    assert let_in(trusted, mint(scope="openid profile")).scopes == set()
    assert let_in(trusted, mint(scope="")).scopes == set()
    assert "approvals:decide" not in let_in(trusted, mint(groups=["desk"], scope="orders:read")).scopes
    for odd in (7, {"orders:read": 1}, [1], " ".join(["orders:read"] * 65)):
        assert refused(trusted, mint(scope=odd)) == "scope"


SCOPES = st.sampled_from(
    ["orders:read", "orders:write", "refunds:write", "code:run", "approvals:decide", "openid", "*"]
)
NARROWING = st.fixed_dictionaries(
    {},
    optional={
        "scope": st.lists(SCOPES, max_size=4).map(" ".join),
        "scp": st.lists(SCOPES, max_size=4),
        "act": st.integers(1, 4).map(chain) | st.just({"sub": "planner@corp", "act": {"sub": "frontend"}}),
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(
    groups=st.lists(st.sampled_from(["shoppers", "desk", "money"]), min_size=1),
    first=NARROWING,
    more=NARROWING,
    header=st.lists(SCOPES, max_size=4).map(" ".join),
)
def test_no_actor_and_no_scope_ever_adds_a_right(
    trusted: Path, groups: list[str], first: dict[str, Any], more: dict[str, Any], header: str
) -> None:
    issuer = identities(trusted).issuers[ISSUER]
    base = principal_of(trusted, issuer, claims(groups=groups) | first)
    added = {name: value for name, value in more.items() if name not in first}
    narrower = principal_of(trusted, issuer, claims(groups=groups) | first | added)
    assert narrowed(narrower, asked_scopes(header)).scopes <= narrower.scopes
    assert narrower.scopes <= base.scopes <= principal_of(trusted, issuer, claims(groups=groups)).scopes
    assert (narrower.tenant, narrower.user, narrower.roles) == (base.tenant, base.user, base.roles)
    for actor in narrower.actors:
        assert narrower.scopes <= identities(trusted).actors[actor]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
CLAIMS = ("sub", "groups", "scope", "scp", "act", "aud", "exp", "iat", "nbf", "cnf")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(changed=st.dictionaries(st.sampled_from(CLAIMS), JSON, min_size=1, max_size=3))
def test_whatever_an_issuer_signs_ends_in_a_principal_or_a_refusal(trusted: Path, changed: dict[str, Any]) -> None:
    token = mint_raw({"alg": "EdDSA", "kid": "EdDSA"}, claims() | changed)
    try:
        assert let_in(trusted, token).scopes <= CUSTOMER
    except TokenRefused:
        pass


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.text(max_size=300) | st.binary(max_size=200).map(lambda data: f"{data.decode('latin-1')}.{data.hex()}.x"))
def test_whatever_a_stranger_sends_is_refused(trusted: Path, text: str) -> None:
    assert refused(trusted, text) in ("malformed", "header", "algorithm", "issuer")


def test_changed_files_count_at_once(trusted: Path) -> None:
    tokens = Tokens(trusted)
    token = mint("ES256")

    async def story() -> None:
        assert (await tokens.authenticate(token)).user == "C-1"
        (trusted / "corp.json").write_text(jwks("EdDSA"))  # the key was taken back
        with pytest.raises(TokenRefused, match="key"):
            await tokens.authenticate(token)
        (trusted / "corp.json").write_text("{}")
        with pytest.raises(TokenRefused, match="key"):
            await tokens.authenticate(mint())
        (trusted / "corp.json").write_text(jwks())
        file = trusted / "identities.toml"
        before = file.read_text()
        file.write_text(before.replace(ISSUER, "https://idp.example.org/"))
        with pytest.raises(TokenRefused, match="issuer"):
            await tokens.authenticate(token)
        file.write_text("nonsense")
        with pytest.raises(TokenRefused, match="configuration"):
            await tokens.authenticate(token)
        file.write_text(before)
        assert (await tokens.authenticate(token)).user == "C-1"

    asyncio.run(story())


def test_the_tables_of_these_tests_have_no_problem(trusted: Path) -> None:
    assert identity_problems(trusted, CUSTOMER | {"code:run"}) == []
