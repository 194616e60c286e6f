"""Advice from traffic: only what was not needed, with numbers; a patch that applies and refuses none of the traffic."""

import shutil
import subprocess
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentops import project as projects
from agentops.errors import PolicyError
from agentops.policy import PolicySet, identities, principal
from agentops.policy.advise import MIN_DECISIONS, Finding, findings, needs, observe, percentile
from agentops.policy.proposal import Proposal, propose, set_key
from agentops.policy.replay import Recorded
from agentops.project import FOLDERS, Project
from agentops.types import Run, ToolCall

CALLS = {
    "get_order": {"order_id": "SO-10001"},
    "track_shipment": {"order_id": "SO-10001"},
    "cancel_order": {"order_id": "SO-10001"},
    "search_articles": {"query": "returns"},
    "create_refund": {"order_id": "SO-10001", "amount_cents": 1_200, "reason": "damaged"},
}


@dataclass
class Desk:
    """A copy of the reference project, and decisions of its policies."""

    project: Project
    policies: PolicySet
    recorded: list[Recorded]

    @property
    def specs(self) -> dict:
        return {name: tool.spec for name, tool in self.project.tools.items()}

    def ask(self, agent: str, tool: str, *, run: str = "r", calls: int = 1, money: int = 0, role: str = "customer"):
        who = principal(self.project.policies, "default", "C-1", (role,))
        as_run = Run(run, run, who, self.project.agents[agent], 1e12, f"t-{run}")
        spec = self.specs[tool]
        call = ToolCall(f"c{len(self.recorded)}", tool, CALLS[tool])
        sources = dict.fromkeys(CALLS[tool], "request")
        facts = {"calls_used": calls, "money_used_cents": money, "untrusted_seen": False, "sources": sources}
        facts |= {"seen_confidentiality": "public", "approved": False}
        decision = self.policies.decide(as_run, call, spec, facts)
        self.recorded.append(Recorded(len(self.recorded), as_run, call, spec.digest, facts, decision))
        return decision

    def findings(self) -> list[Finding]:
        people = identities(self.project.policies)
        seen = observe(self.recorded, self.specs)
        return findings(seen, self.specs, self.project.agents, people, self.policies.policies)

    def propose(self) -> Proposal:
        people = identities(self.project.policies)
        needed = needs(observe(self.recorded, self.specs), self.specs, self.project.agents, people)
        return propose(self.project, self.specs, needed, people, self.policies, lambda: self.recorded)


@pytest.fixture(scope="module")
def root(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("desk")
    for folder in FOLDERS:
        shutil.copytree(repo / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "pyproject.toml").write_text('[tool.agentops]\nservice = "desk"\n')
    return root


@pytest.fixture(scope="module")
def loaded(root: Path) -> tuple[Project, PolicySet]:
    project = projects.load(root)
    specs = {name: tool.spec for name, tool in project.tools.items()}
    return project, PolicySet.load(project.policies, specs, project.agents)


@pytest.fixture
def desk(loaded: tuple[Project, PolicySet]) -> Desk:
    return Desk(*loaded, [])


def busy(desk: Desk) -> None:
    """Two hundred calls of the orders agent, a hundred and twenty of billing, three of help."""
    for n in range(100):
        desk.ask("orders", "get_order", run=f"o{n}", calls=1)
        desk.ask("orders", "track_shipment" if n % 3 else "search_articles", run=f"o{n}", calls=2)
    for n in range(120):
        desk.ask("billing", "create_refund", run=f"b{n}", calls=2, money=1_200)
    for n in range(3):
        desk.ask("help", "search_articles", run=f"h{n}")


def test_little_traffic_gives_no_advice(desk: Desk) -> None:
    for _ in range(MIN_DECISIONS - 1):
        desk.ask("orders", "get_order")
    with pytest.raises(PolicyError, match="99 decisions are recorded in this time: advice needs at least 100"):
        desk.findings()


def test_what_was_never_needed_is_named_with_numbers(desk: Desk) -> None:
    busy(desk)
    assert all(one.decision.effect == "allow" for one in desk.recorded)
    found = {(one.kind, one.subject, one.what): one for one in desk.findings()}
    assert ("unused-tool", "orders", "cancel_order") in found
    assert ("unused-tool", "orders", "get_order") not in found
    assert ("unused-scope", "orders", "orders:write") in found
    assert ("unused-scope", "orders", "orders:read") not in found
    assert ("unused-role-scope", "customer", "inventory:write") in found
    assert ("unused-role-scope", "customer", "refunds:write") not in found
    assert ("idle-permit", "egress-within-scopes", "") in found
    assert ("idle-permit", "money-within-scopes", "") not in found
    assert ("idle-forbid", "refund-hard-limit", "") in found
    assert found["unused-tool", "orders", "cancel_order"].message.endswith("in 0 of 200 calls")
    assert found["loose-limit", "orders", "max_calls"].message == (
        "agent orders: max_calls is 12; of 100 requests 99 % used at most 2, the largest 2"
    )
    # Three calls say nothing of an agent, and none nothing of a role.
    assert {(one.subject, one.what, one.decisions) for one in found.values() if one.kind == "few"} >= {
        ("help", "agent", 3),
        ("staff", "role", 0),
    }
    assert not any(one.subject == "help" for one in found.values() if one.kind != "few")


def test_denied_calls_are_no_need(desk: Desk) -> None:
    busy(desk)
    for _ in range(50):
        assert desk.ask("orders", "create_refund", money=1_200).effect == "deny"
    found = {(one.kind, one.subject) for one in desk.findings()}
    assert ("idle-forbid", "agent-ceiling") not in found
    assert desk.propose().refused == 0


def test_what_the_policies_of_yesterday_allowed_is_not_held_against_the_patch(desk: Desk) -> None:
    busy(desk)
    allowed = desk.recorded[0].decision
    for _ in range(50):
        assert desk.ask("orders", "create_refund", money=1_200).effect == "deny"
        desk.recorded[-1] = replace(desk.recorded[-1], decision=allowed)
    assert desk.propose().refused == 0


def test_the_patch_applies_loads_and_refuses_none_of_the_traffic(desk: Desk, tmp_path: Path) -> None:
    busy(desk)
    proposal = desk.propose()
    assert (proposal.replayed, proposal.refused, proposal.skipped) == (len(desk.recorded), 0, ())
    copy = tmp_path / "copy"
    shutil.copytree(desk.project.root, copy)
    subprocess.run(["git", "apply", "-p1"], cwd=copy, input=proposal.patch, text=True, check=True)
    changed = projects.load(copy)
    orders = changed.agents["orders"]
    assert orders.tools == {"get_order", "track_shipment", "search_articles"}
    assert orders.scopes == {"orders:read", "knowledge:read"}
    assert orders.max_calls == 3
    assert changed.agents["billing"].max_money_cents == 1_500
    assert changed.agents["help"] == desk.project.agents["help"]
    assert changed.agents["catalogue"] == desk.project.agents["catalogue"]
    assert identities(changed.policies).roles["customer"].scopes == {
        "orders:read", "refunds:read", "refunds:write", "knowledge:read",
    }  # fmt: skip
    assert identities(changed.policies).roles["staff"] == identities(desk.project.policies).roles["staff"]
    policies = PolicySet.load(changed.policies, desk.specs, changed.agents)
    [read] = [one for name, one in policies.policies.items() if name == "read-within-scopes"]
    for tool in ("get_order", "search_articles", "track_shipment"):
        assert f'Action::"{tool}"' in read.text
    assert 'Action::"read"' not in read.text
    for one in desk.recorded:
        run = replace(one.run, agent=changed.agents[one.run.agent.name])
        assert policies.decide(run, one.call, desk.specs[one.call.tool], one.facts).effect == "allow"
    assert "# what the support desk" in (copy / "routers/intent/router.toml").read_text().lower()  # comments stay


def test_a_permit_all_of_whose_tools_were_needed_stays_as_it_is(desk: Desk) -> None:
    busy(desk)  # create_refund is the only tool that moves money
    patch = desk.propose().patch
    assert '-permit (principal, action in Action::"read", resource)' in patch
    assert '-permit (principal, action in Action::"money", resource)' not in patch


def test_nothing_is_written_and_nothing_to_take_is_no_patch(desk: Desk) -> None:
    before = projects.digest(desk.project.root)
    busy(desk)
    assert desk.propose().patch
    assert projects.digest(desk.project.root) == before
    desk.recorded.clear()
    assert desk.propose() == Proposal("", 0, 0, ())


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asked=st.lists(
        st.tuples(
            st.sampled_from(["orders", "billing", "help"]), st.sampled_from(sorted(CALLS)),
            st.integers(0, 12), st.integers(0, 220_000), st.sampled_from(["customer", "staff", "finance"]),
        ),
        min_size=1, max_size=6,
    )
)  # fmt: skip
def test_a_proposal_never_refuses_what_it_was_made_from(desk: Desk, asked: list) -> None:
    desk.recorded.clear()
    for turn in range(MIN_DECISIONS):
        for agent, tool, calls, money, role in asked:
            desk.ask(agent, tool, run=f"r{turn}", calls=calls, money=money, role=role)
    proposal = desk.propose()
    assert proposal.replayed == MIN_DECISIONS * len(asked)
    assert proposal.refused == 0
    assert proposal.skipped == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[agents.a]\ntools = ["x", "y"]\n', '[agents.a]\ntools = ["x"]\n'),
        ('[agents.a]  # the first\ntools = [ # why\n  "x", # kept ]\n  "y",\n] # end\n',
         '[agents.a]  # the first\ntools = ["x"] # end\n'),
        ('[ agents.a ]\nn = 1\ntools=["y","x"]', '[ agents.a ]\nn = 1\ntools=["x"]'),
        ('[agents.b]\ntools = ["x", "y"]\n[agents.a]\ntools = ["a]\\"", "x"]\n',
         '[agents.b]\ntools = ["x", "y"]\n[agents.a]\ntools = ["x"]\n'),
        ('agents.a.tools = ["x", "y"]\n', None),
        ('agents = { a = { tools = ["x", "y"] } }\n', None),
        ('[agents.a]\nn = 1\n[agents.b]\ntools = ["x", "y"]\n', None),
    ],
)  # fmt: skip
def test_one_value_of_a_toml_file_changes_and_nothing_else(text: str, expected: str | None) -> None:
    assert set_key(text, ("agents", "a"), "tools", frozenset({"x"})) == expected


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=6)


@given(names=st.lists(NAMES, unique=True, max_size=30), keep=st.data(), write=st.sampled_from(["one line", "rows"]))
def test_any_list_can_be_shortened(names: list[str], keep: st.DataObject, write: str) -> None:
    kept = frozenset(keep.draw(st.sets(st.sampled_from(names)) if names else st.just(set())))
    quoted = [projects_toml(name) for name in names]
    body = ", ".join(quoted) if write == "one line" else "\n  " + "".join(f"{one}, # ] note\n  " for one in quoted)
    text = f"# head\n[agents.a]\nlimit = 3\ntools = [{body}] # tail\n[agents.b]\ntools = []\n"
    before = tomllib.loads(text)
    changed = set_key(text, ("agents", "a"), "tools", kept)
    assert changed is not None
    after = tomllib.loads(changed)
    assert after["agents"]["a"]["tools"] == [name for name in names if name in kept]
    after["agents"]["a"]["tools"] = before["agents"]["a"]["tools"]
    assert after == before
    assert changed.startswith("# head\n")
    assert "# tail\n" in changed


def projects_toml(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def test_percentiles_are_observed_values() -> None:
    assert percentile([], 0.99) == 0
    assert percentile([7], 0.99) == 7
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile(range(1, 201), 0.5) == 100
