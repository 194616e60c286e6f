"""The reference project loads, and its files agree with each other."""

from agentops.plan.language import parse, slots
from agentops.plan.playbooks import Playbooks
from agentops.train import recipe
from agentops.types import OUT_OF_SCOPE, Ref


def test_five_packs_with_at_least_twelve_tools_of_every_kind(project) -> None:
    assert sorted(pack.name for pack in project.packs) == ["documents", "inventory", "knowledge", "orders", "refunds"]
    specs = [tool.spec for tool in project.tools.values()]
    assert len(specs) == 16
    assert {spec.effect for spec in specs} == {"read", "write", "money", "egress"}
    for spec in specs:
        assert spec.scopes, spec.name
        assert spec.description.endswith("."), spec.name
        assert (spec.cache is not None) == (spec.effect == "read"), spec.name
        assert spec.idempotent, spec.name
        assert bool(spec.invalidates) == (spec.effect != "read"), spec.name


def test_bodies_that_outsiders_may_have_written_are_untrusted(project) -> None:
    untrusted = {name for name, tool in project.tools.items() if tool.spec.labels.integrity == "untrusted"}
    assert untrusted == {"get_article", "get_document"}


def test_every_tool_has_a_simulated_latency(project, part) -> None:
    assert set(part("tools.world").latencies()) == set(project.tools)


def test_router_labels_name_agents_and_agents_name_tools(project) -> None:
    router = project.routers["intent"].table
    assert len(router["labels"]) >= 15
    for label, table in router["labels"].items():
        assert table["agent"] in project.agents, label
        assert table["description"], label
    for agent in project.agents.values():
        assert agent.tools <= set(project.tools), agent.name
        needed = set().union(*(project.tools[name].spec.scopes for name in agent.tools))
        assert needed == set(agent.scopes), f"{agent.name}: scopes of its tools, no more"


def test_every_intent_has_a_playbook_that_its_agent_may_run(project, part) -> None:
    specs = {name: tool.spec for name, tool in project.tools.items()}
    router, planner = project.routers["intent"].table, project.routers["planner"]
    assert set(planner.table["playbooks"]) == set(router["labels"])
    playbooks = Playbooks(planner, part("routers.planner.playbooks").extract)
    assert playbooks.problems(specs) == []
    for label, table in planner.table["playbooks"].items():
        plan = parse(table["plan"], specs, slots={name: Ref("slot") for name in slots(table["plan"])})
        agent = project.agents[router["labels"][label]["agent"]]
        assert {step.tool for step in plan.steps} <= agent.tools, label
        assert len(plan.steps) <= agent.max_calls, label
        assert bool(table["needs"]) == ("ask" in table), label


def test_no_playbook_reads_outsiders_text_where_money_moves_or_mail_leaves(project, part) -> None:
    for label, table in project.routers["planner"].table["playbooks"].items():
        tools = {name for name in project.tools if f"{name}(" in table["plan"]}
        effects = {project.tools[name].spec.effect for name in tools}
        untrusted = {name for name in tools if project.tools[name].spec.labels.integrity == "untrusted"}
        assert not (untrusted and effects & {"money", "egress"}), label


def test_the_recipe_reads_and_its_files_exist(project) -> None:
    definition = project.pipeline()
    found = recipe.read(definition.file)
    assert None not in (found.causal, found.sft, found.dpo, found.grpo)
    for name in (*definition.table["harvest"]["exclude"], *definition.table["evaluate"].values()):
        assert (definition.path / name).is_file(), name
    assert definition.table["pipeline"]["router"] in project.routers


def test_the_shipped_router_is_fitted_on_a_handful(project) -> None:
    rows = (project.root / "routers" / "intent" / "messages.csv").read_text().splitlines()
    labels = [row.rsplit(",", 1)[1] for row in rows[1:]]
    for label in project.routers["intent"].table["labels"]:
        assert labels.count(label) == 3, label
    assert labels.count(OUT_OF_SCOPE) == 6
    assert "handful" in project.routers["intent"].table["router"]["description"]
