"""Loading: what is refused, with file and line; the schema; the decisions file; the reference project's policies."""

from dataclasses import replace
from pathlib import Path

import cedarpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from policy_world import AGENTS, CALM, CEDAR, TOOLS, call_of, run_of, spec_of

from agentops import project
from agentops.act.tool import Context, tool
from agentops.errors import PolicyError
from agentops.parsers import email, email_domain
from agentops.policy import PolicySet, generate_schema, policy_problems, write_schema
from agentops.policy.cedar import statements
from agentops.policy.decisions import read_cases


def problems(policies: Path) -> list[str]:
    return [str(problem) for problem in policy_problems(policies, TOOLS, AGENTS)]


def test_the_small_project_is_fine(policies: Path) -> None:
    assert problems(policies) == []


def test_every_problem_comes_at_once_with_file_and_line(policies: Path) -> None:
    (policies / "broken.cedar").write_text(
        "// first line\n"
        '@id("a") permit (principal action, resource);\n'
        "permit (principal, action, resource);\n"
        '@id("read") forbid (principal, action, resource);\n'
        '@id("b") @advise("approval:finance") forbid (principal, action, resource);\n'
        '@id("c") @advice("finance") forbid (principal, action, resource);\n'
        '@id("d") @advice("approval:finance") permit (principal, action == Action::"get_order", resource);\n'
        '@id("e") permit (principal, action == Action::"get_ordr", resource);\n'
        '@id("f") permit (principal, action == Action::"get_order", resource)\n'
        'when { context.args.order_idd == "x" };\n'
        '@id("g") permit (principal in Agent::"bilng", action, resource);\n'
        '@id("h") permit (principal == ?principal, action, resource);\n'
        '@id("i") permit (principal, action, resource == Tool::"nothing");\n'
        '@id("j") permit (principal, action, resource)'
    )
    found = problems(policies)
    for expected in (
        "policies/broken.cedar:2: the policy that begins here does not parse",
        "policies/broken.cedar:3: has no usable id",
        "policies/broken.cedar:4: id 'read' is already used at policies/base.cedar:2",
        "policies/broken.cedar:5: annotation @advise is not known",
        "policies/broken.cedar:6: @advice('finance') is not usable",
        "policies/broken.cedar:7: @advice('approval:finance') is not usable",
        "policies/broken.cedar:8: policy 'e': unrecognized action `Action::\"get_ordr\"`",
        "policies/broken.cedar:9: policy 'f': attribute `args.order_idd`",
        "policies/broken.cedar:11: policy 'g'",
        "policies/broken.cedar:12: a policy template",
        "policies/broken.cedar:13: names tool 'nothing'",
        "policies/broken.cedar:14: the policy that begins here does not parse: unexpected end of input",
    ):
        assert any(line.startswith(expected) for line in found), (expected, found)
    with pytest.raises(PolicyError, match=r"12 problem\(s\)|1\d problem\(s\)"):
        PolicySet.load(policies, TOOLS, AGENTS)


@pytest.mark.parametrize("name", ["amount_cents", r"\u{61}mount_cents", r"amount\x5fcents"])
def test_a_fact_is_found_however_its_name_is_written(policies: Path, name: str) -> None:
    """Facts that no policy names are left out of a decision: one that is named in escapes must not be."""
    rule = f'''@id("small") forbid (principal, action == Action::"create_refund", resource)
when {{ context.args has "{name}" && context.args["{name}"] > 5 }};'''
    (policies / "base.cedar").write_text('@id("all") permit (principal, action, resource);\n' + rule)
    call = call_of("create_refund", order_id="SO-1", amount_cents=6)
    decision = PolicySet.load(policies, TOOLS, AGENTS).decide(run_of(), call, spec_of("create_refund"), CALM)
    assert (decision.effect, decision.policies) == ("deny", ("small",))


def test_an_empty_set_is_refused(policies: Path) -> None:
    (policies / "base.cedar").write_text("// nothing here\n")
    with pytest.raises(PolicyError, match="has no policy"):
        PolicySet.load(policies, TOOLS, AGENTS)
    (policies / "base.cedar").unlink()
    with pytest.raises(PolicyError, match="has no policy"):
        PolicySet.load(policies, TOOLS, AGENTS)


def test_a_file_that_is_not_text_is_named(policies: Path) -> None:
    (policies / "binary.cedar").write_bytes(b"\xff\xfe\x00")
    assert any("binary.cedar: cannot be read" in line for line in problems(policies))


def test_the_digest_changes_with_policies_and_tools_and_with_nothing_else(policies: Path, loaded: PolicySet) -> None:
    assert PolicySet.load(policies, TOOLS, AGENTS).digest == loaded.digest
    (policies / "notes.txt").write_text("irrelevant")
    assert PolicySet.load(policies, TOOLS, AGENTS).digest == loaded.digest
    fewer = {name: spec for name, spec in TOOLS.items() if name != "run_code"}
    agents = {name: replace(agent, tools=agent.tools - {"run_code"}) for name, agent in AGENTS.items()}
    assert PolicySet.load(policies, fewer, agents).digest != loaded.digest
    (policies / "base.cedar").write_text(CEDAR.replace("10000", "10001"))
    assert PolicySet.load(policies, TOOLS, AGENTS).digest != loaded.digest


def test_a_stale_schema_is_named_with_its_line(policies: Path) -> None:
    file = policies / "schema.cedarschema"
    file.write_text(file.read_text().replace("amount_cents: Long", "amount_cents: String"))
    [problem] = problems(policies)
    assert "does not fit the tools and agents" in problem
    line = int(problem.split(":")[1])
    assert "amount_cents" in file.read_text().splitlines()[line - 1]
    file.unlink()
    assert "is missing" in problems(policies)[0]
    write_schema(policies, TOOLS, AGENTS)
    assert problems(policies) == []


def test_the_schema_of_a_tool() -> None:
    schema = generate_schema({"send_document": TOOLS["send_document"]}, {"billing": AGENTS["billing"]})
    assert schema[schema.index('action "send_document"') :] == snapshot(
        """\
action "send_document" in [Action::"egress"] appliesTo {
  principal: [Run],
  resource: [Tool],
  context: {
    args: {
      document_id: String,
      email: String,
      email_domain: String
    },
    g: {
      args_confidentiality: String,
      args_untrusted: Bool,
      calls_used: Long,
      isolation: String,
      money_used_cents: Long,
      seen_confidentiality: String,
      untrusted_seen: Bool
    },
    source: {
      document_id: String,
      email: String
    }
  }
};
"""
    )
    assert 'entity Agent enum ["billing"];' in schema
    cedarpy.Schema.from_str(schema)


def test_names_that_cannot_be_facts_are_refused() -> None:
    with pytest.raises(PolicyError, match="name of an effect"):
        generate_schema({"money": replace(TOOLS["get_order"], name="money")}, {})
    collides = {"properties": {"email": {"type": "string"}, "email_domain": {"type": "string"}}, "required": []}
    with pytest.raises(PolicyError, match="email_domain"):
        generate_schema({"x": replace(TOOLS["get_order"], name="x", parameters=collides)}, {})


def test_every_kind_of_argument_gives_a_schema_that_parses() -> None:
    from enum import Enum
    from typing import Literal

    class Colour(Enum):
        RED = "red"

    @tool(effect="read", scopes={"a:b"}, timeout_s=1, pack="x")
    async def everything(
        ctx: Context,
        text: str,
        number: int,
        ratio: float,
        flag: bool,
        several: list[str],
        numbers: list[int],
        choice: Literal["a", "b"],
        colour: Colour,
        nested: dict[str, int],
        maybe: str | None = None,
        either: str | int = 1,
        like: str = "reserved",
        work_email: str | None = None,
    ) -> dict:
        """Everything."""
        return {}

    schema = generate_schema({"everything": everything.spec}, {})
    cedarpy.Schema.from_str(schema)
    for line in (
        "choice: String",
        "colour: String",
        "flag: Bool",
        '"like": String',
        "maybe?: String",
        "numbers: Set<Long>",
        "several: Set<String>",
        "work_email_domain?: String",
    ):
        assert line in schema
    facts, _, sources = schema.partition("source: {")
    for absent in ("ratio", "nested", "either"):
        assert absent not in facts, "no fact"
        assert f"{absent}: String" in sources, "but it comes from somewhere"


@given(
    st.lists(
        st.sampled_from([CEDAR, "// only a comment\n", '@id("x") permit (principal, action, resource)', ";\n", '"']),
        max_size=5,
    )
)
def test_cutting_a_file_loses_no_policy(parts: list[str]) -> None:
    text = "".join(parts)
    found = statements(text)
    for line, statement in found:
        assert statement in text
        assert text.splitlines()[line - 1].lstrip().startswith(statement.splitlines()[0][:10].rstrip())


def test_comments_and_quotes_do_not_move_the_lines() -> None:
    first = '@id("one;two") // c\npermit (principal, action, resource)\nwhen { "x\\";\n" == "y" };'
    text = f'// a; b\n\n{first}\n@id("z")\nforbid (principal, action, resource);'
    assert [line for line, _ in statements(text)] == [3, 7]


CASE = """
[[decision]]
name = "a read"
tool = "get_order"
agent = "billing"
arguments = { order_id = "SO-1" }
expect = "allow"
policies = ["read"]
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('expect = "allow"', 'expect = "deny"'), "expected deny, got allow by read"),
        (('policies = ["read"]', 'policies = ["effects"]'), "expected allow by effects, got it by read"),
        (('policies = ["read"]', 'policies = ["nothing"]'), "policy 'nothing' does not exist"),
        (('tool = "get_order"', 'tool = "get_ordr"'), "tool 'get_ordr' does not exist; tools: "),
        (('agent = "billing"', 'agent = "bill"'), "agent 'bill' does not exist"),
        (('agent = "billing"', 'agent = "billing"\nroles = ["ceo"]'), "role 'ceo' does not exist"),
        (('expect = "allow"', 'expect = "maybe"'), "must be one of allow, deny, approve"),
        (('expect = "allow"', 'expects = "allow"'), "'expects' is not known"),
        (('name = "a read"\n', ""), "has no 'name'"),
        (('{ order_id = "SO-1" }', '["SO-1"]'), "must be of type dict"),
        (('{ order_id = "SO-1" }', "{ order_id = 5 }"), "expected allow, got deny by malformed-call"),
        (('expect = "allow"', 'expect = "allow"\nfacts = { surprise = 1 }'), "'surprise' is not known"),
        (("[[decision]]", "[[decisions]]"), "'decisions' is not known"),
        (("[[decision]]", "[[decision]"), "not valid TOML"),
    ],
)
def test_a_decision_that_comes_out_otherwise_is_a_problem(
    policies: Path, change: tuple[str, str], message: str
) -> None:
    file = policies / "decisions.toml"
    file.write_text(CASE)
    assert problems(policies) == []
    file.write_text(CASE.replace(*change))
    [problem] = problems(policies)
    assert message in problem
    assert problem.startswith("policies/decisions.toml")


def test_two_cases_of_one_name(policies: Path) -> None:
    (policies / "decisions.toml").write_text(CASE + CASE)
    assert problems(policies) == ["policies/decisions.toml:10: name 'a read' is used twice"]


def test_an_approver_nobody_is_is_a_problem(policies: Path) -> None:
    file = policies / "identities.toml"
    file.write_text(file.read_text().replace("[roles.finance]", "[roles.boss]"))
    [problem] = problems(policies)
    assert "waits for role 'finance', which identities.toml does not make an approver" in problem


@pytest.mark.parametrize(
    ("address", "domain"),
    [
        ("mara@example.com", "example.com"),
        ("Mara.Brandt+x@Mail.Example.COM", "mail.example.com"),
        ("o'neill_1@a-b.example.org", "a-b.example.org"),
    ],
)
def test_plain_addresses_have_a_domain(address: str, domain: str) -> None:
    assert email_domain(email(address)) == domain


@pytest.mark.parametrize(
    "address",
    [
        "",
        "@",
        "mara",
        "mara@",
        "@example.com",
        "a@evil.test@example.com",
        '"a@evil.test"@example.com',
        "a@example.com@",
        "a b@example.com",
        "a@example.com ",
        " a@example.com",
        "a@example.com\nBcc: x@evil.test",
        "a@example.com\r\n",
        "Mara <a@example.com>",
        "a@example.com,b@evil.test",
        "a@example.com;b",
        "a@example.com(comment)",
        "a@[127.0.0.1]",
        "a@127.0.0.1",
        "a@localhost",
        "a@example..com",
        "a@.example.com",
        "a@example.com.",
        "a@-example.com",
        "a@exam_ple.com",
        "a..b@example.com",
        ".a@example.com",
        "a@ex\u0430mple.com",
        "\u0430@example.com",
        "a@xn--exmple-4nf.com",
        "a@example.c\u200bom",
        "a@example\uff0ecom",
        "a%40evil.test@example.com\x00",
        "a" * 65 + "@example.com",
        "a@" + "b." * 130 + "com",
        "a@example.c0m",
    ],
)
def test_ambiguous_addresses_are_refused(address: str) -> None:
    with pytest.raises(PolicyError, match="plain e-mail address"):
        email(address)


@given(st.text(max_size=40), st.text(max_size=40))
def test_an_accepted_address_has_one_reading(local: str, domain: str) -> None:
    address = f"{local}@{domain}"
    try:
        found = email_domain(email(address))
    except PolicyError:
        return
    assert address.rsplit("@", 1)[1].lower() == found == address.split("@", 1)[1].lower()
    assert not set(address) & set(' <>,;:"()[]\\\r\n\x00')


# ------------------------------------------------------------------ the reference project


def test_the_reference_projects_policies_have_no_problem(repo: Path) -> None:
    loaded, _ = project.inspect(repo)
    assert loaded is not None
    specs = {name: one.spec for name, one in loaded.tools.items()}
    assert [str(problem) for problem in policy_problems(loaded.policies, specs, loaded.agents)] == []


def test_every_reference_policy_is_held_by_a_decision(repo: Path) -> None:
    loaded, _ = project.inspect(repo)
    assert loaded is not None
    specs = {name: one.spec for name, one in loaded.tools.items()}
    policies = PolicySet.load(loaded.policies, specs, loaded.agents)
    cases, _ = read_cases(loaded.policies)
    assert {name for case in cases for name in case.policies} >= set(policies.policies)
