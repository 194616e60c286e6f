"""The tasks: how many, how varied, which split, and that the committed suites are what the generator writes."""

import csv
import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.plan.language import parse
from agentops.types import OUT_OF_SCOPE


@pytest.fixture(scope="session")
def tasks(part):
    return part("pipelines.support.tasks")


@pytest.fixture(scope="session")
def everything(tasks):
    return tasks.generate()


def test_the_committed_suites_are_what_the_generator_writes(tasks) -> None:
    for name, rows in tasks.suites().items():
        committed = (tasks.SUITES / name).read_text(encoding="utf-8")
        assert committed == "".join(map(tasks.line, rows)), (
            f"{name} is stale: call write() of pipelines/support/tasks.py"
        )
        assert tasks.read(tasks.SUITES / name) == rows


def test_the_routers_seed_rows_are_what_the_generator_writes(tasks, project) -> None:
    with open(project.root / "routers" / "intent" / "messages.csv", encoding="utf-8", newline="") as file:
        rows = [(row["text"], row["label"]) for row in csv.DictReader(file)]
    assert rows == tasks.seed_rows()


def test_a_thousand_frozen_a_thousand_sealed_the_rest_to_train(everything, tasks) -> None:
    assert Counter(task.split for task in everything) == {"frozen": 1000, "sealed": 1000, "train": 3100}
    assert len(tasks.traffic()) == 2000
    assert {task.split for task in tasks.traffic()} == {"train"}
    for split in ("train", "frozen", "sealed"):
        assert tasks.tasks(split) == [task for task in everything if task.split == split]


def test_no_wording_and_no_text_is_in_two_splits(everything, tasks) -> None:
    wording: dict[str, set[str]] = {}
    text: dict[str, set[str]] = {}
    for task in everything:
        text.setdefault(tasks.normal(task.text), set()).add(task.split)
        for template in task.template.split("+"):
            wording.setdefault(template, set()).add(task.split)
    for row, _ in tasks.seed_rows():
        text.setdefault(tasks.normal(row), set()).add("seed")
    assert all(len(splits) == 1 for splits in wording.values())
    assert all(len(splits) == 1 for splits in text.values())
    assert len(text) == len(everything) + len(tasks.seed_rows()), "no message twice"
    assert len({task.id for task in everything}) == len(everything)


def test_every_intent_has_many_wordings_in_every_split(part, project) -> None:
    wordings = part("pipelines.support.phrasing").wordings()
    for label in project.routers["intent"].table["labels"]:
        own = [one for one in wordings if one.label == label]
        assert len({one.text for one in own}) >= 24, label
        splits = Counter(one.split for one in own)
        assert splits["seed"] == 3, label
        assert min(splits["frozen"], splits["sealed"]) >= 6, label
        assert splits["train"] >= 16, label
        assert splits["later"] >= 3, label
    assert len([one for one in wordings if one.label == OUT_OF_SCOPE]) >= 80
    assert {one.label for one in wordings} == {*project.routers["intent"].table["labels"], OUT_OF_SCOPE}


def test_wordings_differ_by_more_than_a_word(part) -> None:
    """Within an intent no wording is another with a word changed, and what is measured is not what is trained on."""
    seen: list[tuple] = []
    for one in part("pipelines.support.phrasing").wordings():
        words = set(re.findall(r"\w+", one.text.lower()))
        for other, others in seen:
            alike = len(words & others) / len(words | others)
            apart = {one.split, other.split} & {"frozen", "sealed"} and one.split != other.split
            if apart or one.label == other.label:
                limit = 0.7 if apart else 0.8
                assert alike < limit, f"{one.id} {one.text!r} is almost {other.id} {other.text!r}"
        seen.append((one, words))


@pytest.mark.parametrize("split", ["train", "frozen", "sealed"])
def test_the_mix_of_messages(everything, split, project) -> None:
    rows = [task for task in everything if task.split == split]
    several = sum(len(task.labels) > 1 for task in rows) / len(rows)
    outside = sum(task.labels == (OUT_OF_SCOPE,) for task in rows) / len(rows)
    assert 0.09 <= several <= 0.11
    assert 0.07 <= outside <= 0.09
    counts = Counter(label for task in rows for label in task.labels)
    labels = set(project.routers["intent"].table["labels"])
    assert labels <= set(counts)
    assert min(counts[label] for label in labels) > 0.6 * max(counts[label] for label in labels)


def test_some_requests_cannot_be_granted(everything) -> None:
    facts = Counter(fact for task in everything for fact in task.answer_facts)
    shown = " ".join(facts)
    for why in ("cannot find order", "can no longer be cancelled", "is sold out", "The 30 days", "order number"):
        assert why in shown
    waiting = [
        task for task in everything if "create_refund" in task.plan and not task.changes and not task.answer_facts
    ]
    assert 10 <= len(waiting) <= 60, "above the limit a person decides; the exception, not the rule"


def test_must_pass_cases_are_about_money_cancellation_and_people(everything) -> None:
    cases = [task for task in everything if task.must_pass]
    assert 25 <= len(cases) <= 40
    assert {task.split for task in cases} == {"frozen"}
    labels = {task.labels for task in cases}
    assert labels == {("cancel_order",), ("refund_request",), ("change_address",), ("human_agent",)}
    for task in cases:
        assert task.changes or task.labels == ("human_agent",), "what must pass has an effect, or a person"


def test_traffic_brings_new_wordings_only_in_its_second_part(tasks, part) -> None:
    split = {one.id: one.split for one in part("pipelines.support.phrasing").wordings()}
    rows = tasks.traffic()
    first, second = tasks.TRAFFIC
    groups = [{split[name] for name in task.template.split("+")} for task in rows]
    assert all(group == {"train"} for group in groups[:first])
    new = sum(group == {"later"} for group in groups[first:])
    assert new == second // 2
    assert len({task.text for task in rows}) == len(rows)


def test_gold_plans_parse_and_stay_within_their_agents(everything, project) -> None:
    specs = {name: tool.spec for name, tool in project.tools.items()}
    table = project.routers["intent"].table["labels"]
    for task in everything:
        if not task.plan:
            assert task.labels == (OUT_OF_SCOPE,)
            continue
        plan = parse(task.plan, specs)
        allowed = set().union(*(project.agents[table[label]["agent"]].tools for label in task.labels))
        assert {step.tool for step in plan.steps} <= allowed, task.id


def test_every_wording_can_be_filled(part) -> None:
    phrasing, situations = part("pipelines.support.phrasing"), part("pipelines.support.situations")
    rng = random.Random(1)
    for wording in phrasing.wordings():
        for _ in range(3):
            found = situations.draw(wording.label, rng)
            slots = {"name": found.name, "city": "Bonn", **found.slots}
            text = phrasing.message(wording.text, slots, rng)
            assert "{" not in text, text
            assert "}" not in text, text
            assert text.strip() == text != ""


@given(st.integers(0, 2**32))
def test_noise_never_touches_what_stands_in_a_slot(part, seed) -> None:
    phrasing = part("pipelines.support.phrasing")
    rng = random.Random(seed)
    slots = {"name": "Mara", "city": "Bonn", "address": "Am Stadtpark 3, 20095 Hamburg", "quantity": "7"}
    text = phrasing.message("Please bring {quantity} of them over to {address} immediately, thanks", slots, rng)
    assert "Am Stadtpark 3, 20095 Hamburg" in text
    assert re.search(r"\b(7|seven)\b", text)


@pytest.mark.anyio
async def test_the_planner_finds_the_data_that_the_message_carries(everything, part, project) -> None:
    """Given the right routes the playbooks write the gold plan for nearly every message of one intent."""
    from agentops.plan.language import format as written
    from agentops.plan.playbooks import Playbooks
    from agentops.types import Principal, Request, Route

    specs = {name: tool.spec for name, tool in project.tools.items()}
    playbooks = Playbooks(project.routers["planner"], part("routers.planner.playbooks").extract)
    single = [task for task in everything if len(task.labels) == 1 and task.plan and task.labels != ("how_to",)]
    wrong = []
    for task in single[::3]:
        request = Request(task.id, task.text, Principal("default", task.user), "s")
        plan = await playbooks.plan(request, (Route(task.labels[0], 1.0, "gold"),), specs)
        gold = parse(task.plan, specs)
        if written(plan) != written(gold):
            wrong.append((task.text, written(plan), written(gold)))
    assert len(wrong) <= 0.01 * len(single[::3]), wrong[:5]
