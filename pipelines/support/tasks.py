"""The tasks of the support desk: messages with their right routes, plan, end state and answer.

Invariant: `generate` is a function of the wordings, the playbooks and the seeded world. No wording and no text is in
two splits. The committed suites are its output; after a change call `write`, a test compares them.
"""

import functools
import json
import random
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from agentops.types import OUT_OF_SCOPE, Task

from . import phrasing, situations
from .phrasing import Wording
from .situations import Situation

FOLDER = Path(__file__).parent
SUITES = FOLDER / "suites"
PLANNER = FOLDER.parents[1] / "routers" / "planner" / "planner.toml"
COUNTS = {"train": 2_200, "later": 900, "frozen": 1_000, "sealed": 1_000}  # "later" tasks belong to the train split
SEVERAL, OUTSIDE = 0.10, 0.08  # shares of messages with two intents, and of those out of scope
MUST_PASS_EACH = 4  # messages of a must-pass wording that has slots; without slots there is only one
TRAFFIC = (1_300, 700)  # rows with wordings of "train", then rows of which half have wordings of "later"
SLOTS = {"order": "order_id", "refund": "reference", "sku": "sku", "address": "address", "amount": "amount_cents"}

# Text of outsiders is read by these; together with money or mail a plan would wait for an approval.
_UNTRUSTED = frozenset({"how_to", "invoice_details"})
_GUARDED = frozenset({"refund_request", "damaged_item", "wrong_charge", "invoice_copy", "return_label"})
_STEP = re.compile(r"(\w+) = ")
# What a question for missing data must mention, by intent.
_ASKED = {
    "change_address": "new address",
    "refund_status": "refund number",
    "wrong_charge": "amount",
    "stock_check": "name or number",
    "product_alternatives": "name or number",
    "reserve_item": "name or number",
}


@dataclass(frozen=True, slots=True)
class _Part:
    """One intent of a message: wording, situation and plan."""

    wording: Wording
    situation: Situation
    plan: str
    facts: tuple[str, ...]


def tasks(split: str) -> list[Task]:
    """Tasks of "train", "frozen" or "sealed"; the last two are the committed suites."""
    if split in ("frozen", "sealed"):
        return read(SUITES / f"{split}.jsonl")
    return [task for task in generate() if task.split == split]


def traffic() -> list[Task]:
    """Messages in order of arrival, all of the train split (committed as suites/traffic.jsonl).

    The first 1,300 use the wordings that a team would have collected so far; of the last 700 every second one is worded
    in a way that never came before. So the first part is what to harvest, the second what to replay a canary on.
    """
    return read(SUITES / "traffic.jsonl")


@functools.cache
def generate() -> tuple[Task, ...]:
    """Every task of every split, the same on every machine."""
    made: list[Task] = []
    seen: set[str] = {normal(text) for text, _ in seed_rows()}
    for group, count in COUNTS.items():
        made += _group(group, count, random.Random(f"support tasks {group}"), seen)
    return tuple(made)


def seed_rows() -> list[tuple[str, str]]:
    """(text, label) rows of routers/intent/messages.csv: the handful the shipped router is fitted on."""
    rng = random.Random("support seed rows")
    rows = []
    for wording in phrasing.wordings():
        if wording.split == "seed":
            situation = situations.draw(wording.label, rng)
            rows.append((phrasing.message(wording.text, _slots(situation), rng, plain=True), wording.label))
    return rows


def suites() -> dict[str, list[Task]]:
    """File name -> rows, of everything under suites/."""
    everything = generate()
    later = {task.template for task in everything if task.id.startswith("later")}
    known = [task for task in everything if task.split == "train" and task.template not in later]
    new = [task for task in everything if task.template in later]
    random.Random("support traffic").shuffle(known)
    random.Random("support traffic, later").shuffle(new)
    first, second = TRAFFIC
    mixed = known[first : first + second // 2] + new[: second - second // 2]
    random.Random("support traffic, mixed").shuffle(mixed)
    found = {f"{split}.jsonl": [task for task in everything if task.split == split] for split in ("frozen", "sealed")}
    return {**found, "traffic.jsonl": known[:first] + mixed}


def write() -> None:
    """Write the suites and the router's seed data anew, after wordings or world have changed."""
    import csv

    for name, rows in suites().items():
        (SUITES / name).write_text("".join(map(line, rows)), encoding="utf-8")
    with open(PLANNER.parents[1] / "intent" / "messages.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("text", "label"), *seed_rows()])


def line(task: Task) -> str:
    """A task as one compact JSON line; fields at their default are left out."""
    row: dict[str, Any] = {"id": task.id, "text": task.text, "labels": list(task.labels), "user": task.user}
    optional = {
        "plan": task.plan,
        "changes": [dict(change) for change in task.changes],
        "answer_facts": list(task.answer_facts),
        "template": task.template,
        "split": task.split,
        "must_pass": task.must_pass,
    }
    row |= {key: value for key, value in optional.items() if value}
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"


def read(file: Path) -> list[Task]:
    """The rows of a suite file."""
    rows = []
    for text in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(text)
        for key in ("labels", "changes", "answer_facts"):
            row[key] = tuple(row.get(key, ()))
        rows.append(Task(**row))
    return rows


def normal(text: str) -> str:
    """Letters and digits in lower case: two texts that differ less are the same message."""
    return " ".join(re.findall(r"\w+", text.lower()))


def _group(group: str, count: int, rng: random.Random, seen: set[str]) -> list[Task]:
    pool: dict[str, list[Wording]] = {}
    for wording in phrasing.wordings():
        if wording.split == group and not wording.must_pass:
            pool.setdefault(wording.label, []).append(wording)
    several, outside = round(SEVERAL * count), round(OUTSIDE * count)
    fixed = [w for w in phrasing.wordings() if w.must_pass and group == "frozen"]
    fixed = [wording for wording in fixed for _ in range(MUST_PASS_EACH if wording.slots else 1)]
    made: list[tuple[_Part, ...]] = []
    texts: list[str] = []

    def add(wordings: Iterable[Wording], plain: bool = False) -> None:
        for _ in range(200):
            parts, text = _message(tuple(wordings), rng, plain=plain)
            if normal(text) not in seen:
                seen.add(normal(text))
                made.append(parts)
                texts.append(text)
                return
        raise LookupError(f"no new message from {[one.id for one in wordings]}: add courtesies or slots")

    for wording in fixed:
        add((wording,), plain=True)
    order = {label: rng.sample(found, len(found)) for label, found in pool.items()}
    for number in range(outside):
        add((order[OUT_OF_SCOPE][number % len(order[OUT_OF_SCOPE])],))
    labels = [label for label in pool if label != OUT_OF_SCOPE]
    for number in range(several):
        add(_two(labels[number % len(labels)], labels, order, rng))
    for number in range(count - several - outside - len(fixed)):
        label = labels[number % len(labels)]
        add((order[label][number // len(labels) % len(order[label])],))
    split = "train" if group == "later" else group
    numbers = list(range(len(made)))
    rng.shuffle(numbers)
    return [_task(f"{group}-{at:04d}", split, made[n], texts[n]) for at, n in enumerate(numbers)]


def _two(
    first: str, labels: list[str], order: Mapping[str, list[Wording]], rng: random.Random
) -> tuple[Wording, Wording]:
    """Wordings of two intents that may stand in one message, with all their data."""
    single = "human_agent"
    first = rng.choice([one for one in labels if one != single]) if first == single else first
    banned = {first, single} | (_GUARDED if first in _UNTRUSTED else _UNTRUSTED if first in _GUARDED else set())
    second = rng.choice([one for one in labels if one not in banned])
    complete = lambda label: [one for one in order[label] if not _missing(one)]  # noqa: E731
    return rng.choice(complete(first)), rng.choice(complete(second))


def _message(wordings: tuple[Wording, ...], rng: random.Random, *, plain: bool) -> tuple[tuple[_Part, ...], str]:
    several = len(wordings) > 1
    must = any(one.must_pass for one in wordings)
    for _ in range(50):
        try:
            first = situations.draw(wordings[0].label, rng, only_success=several or must)
            found = [first]
            for wording in wordings[1:]:
                taken = str(first.values.get("order_id", ""))
                found.append(situations.draw(wording.label, rng, user=first.user, without=taken, only_success=True))
            break
        except LookupError:  # this user has no order in the state the second intent needs: another user
            continue
    else:
        raise LookupError(f"nobody can ask {[one.id for one in wordings]}")
    if several and found[0].user != found[1].user:
        raise LookupError(f"two users in one message: {[one.id for one in wordings]}")
    parts = tuple(_part(wording, situation) for wording, situation in zip(wordings, found, strict=True))
    if not several:
        return parts, phrasing.message(wordings[0].text, _slots(found[0]), rng, plain=plain)
    # Both wordings may have a slot of the same name: number them, then fill the joined text at once.
    one, two = (re.sub(r"\{(\w+)\}", rf"{{\g<1>_{n}}}", wording.text) for n, wording in enumerate(wordings))
    slots = {f"{key}_{n}": value for n, one in enumerate(found) for key, value in _slots(one).items()}
    return parts, phrasing.message(phrasing.join(one, two, wordings[0].split, rng), {**slots, **_slots(first)}, rng)


def _slots(situation: Situation) -> dict[str, str]:
    return {"name": situation.name, "city": "Bonn", **situation.slots}


def _missing(wording: Wording) -> list[str]:
    """Slots the playbook of this wording needs but the wording does not carry."""
    given = {SLOTS.get(slot, slot) for slot in wording.slots}
    given |= {"reference"} if "order_id" in given else set()
    given |= {"search"} if "topic" in given else set()
    return [need for need in playbooks().get(wording.label, {}).get("needs", []) if need not in {*given, "quantity"}]


def _part(wording: Wording, situation: Situation) -> _Part:
    label = wording.label
    if label == OUT_OF_SCOPE:
        return _Part(wording, situation, "", ())
    playbook = playbooks()[label]
    if _missing(wording):
        return _Part(wording, Situation(situation.user, situation.name), _say(playbook["ask"]), (_asked(label),))
    values = dict(situation.values)
    if label == "refund_status" and "refund" not in wording.slots:
        values["reference"] = situation.slots["order"]
    if label == "reserve_item" and "quantity" not in wording.slots:
        situation = situations.one_piece(situation)
        values["quantity"] = 1
    plan = re.sub(r"\$(\w+)", lambda hole: json.dumps(values[hole[1]], ensure_ascii=False), playbook["plan"].strip())
    return _Part(wording, situation, plan, situation.facts)


def _asked(label: str) -> str:
    return _ASKED.get(label, "order number")


def _say(text: str) -> str:
    return f"say {json.dumps(text, ensure_ascii=False)}"


@functools.cache
def playbooks() -> dict[str, dict[str, Any]]:
    """The playbooks of the planner: the gold plans are these with the right values."""
    return tomllib.loads(PLANNER.read_text(encoding="utf-8"))["playbooks"]


def _task(task_id: str, split: Any, parts: tuple[_Part, ...], text: str) -> Task:
    changes = [change for part in parts for change in part.situation.changes]
    return Task(
        id=task_id,
        text=text,
        labels=tuple(part.wording.label for part in parts),
        user=parts[0].situation.user,
        plan=parts[0].plan if len(parts) == 1 else merged([part.plan for part in parts]),
        changes=tuple(sorted(changes, key=lambda one: json.dumps(one, sort_keys=True))),
        answer_facts=tuple(dict.fromkeys(fact for part in parts for fact in part.facts)),
        template="+".join(part.wording.id for part in parts),
        split=split,
        must_pass=any(part.wording.must_pass for part in parts),
    )


def merged(plans: list[str]) -> str:
    """Plans side by side: line by line in parallel, steps renamed `a_…`, `b_…`, answers one after the other."""
    stages, says = [], []
    for letter, plan in zip("abcdefgh", plans, strict=False):
        *lines, last = plan.splitlines()
        names = "|".join(_STEP.findall("\n".join(lines))) or "-"
        rename = re.compile(rf"\b({names})(?= = |\.\w)")
        stages.append([rename.sub(rf"{letter}_\1", one) for one in lines])
        answer = json.loads(last.removeprefix("say "))
        says.append(re.sub(r"\{(\w+)", rf"{{{letter}_\1", answer))
    together = [" & ".join(filter(None, stage)) for stage in zip_longest(*stages)]
    return "\n".join([*together, _say("\n".join(says))])
