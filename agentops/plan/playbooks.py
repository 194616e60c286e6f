"""Playbooks: a plan per intent, written in planner.toml, filled with what the request says.

    [playbooks.order_status]
    needs = ["order_id"]                                # slots without which there is nothing to plan
    ask = "Which order is it? The number starts with SO-."  # the question when one is missing
    plan = '''
    o = get_order($order_id) & t = track_shipment($order_id)
    say "Order {o.order_id} is {o.status}, last seen in {t.place}."
    '''

Invariant: a request that no playbook covers becomes a hand-over to a person, never a guess; a slot is filled in as a
value, so nothing a customer writes can become a step. What the slots hold is the project's `extract`.
"""

import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from agentops.errors import PlanError
from agentops.plan import language, literals, merge
from agentops.project import Definition, line_of
from agentops.types import OUT_OF_SCOPE, Json, Plan, Problem, Ref, Request, Route, ToolSpec

Extract = Callable[[Request], Mapping[str, Json]]
NOT_COVERED = "I cannot help with the other part of your message."
_KEYS = ("needs", "ask", "plan")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Playbook:
    """One intent's plan with `$slots`."""

    label: str
    plan: str
    needs: tuple[str, ...] = ()
    ask: str = ""


class Playbooks:
    """A Planner over the `[playbooks.<label>]` tables of a definition.

    Args:
        definition: planner.toml; `[planner] not_covered` is said of intents without a playbook in a message where
            others have one.
        extract: the project's function: request -> values of slots. Absent or None = the request does not say.

    Raises:
        PlanError: a table with wrong keys, or a question two playbooks share.
    """

    def __init__(self, definition: Definition, extract: Extract) -> None:
        self._definition = definition
        self._extract = extract
        self._playbooks = {label: _read(label, table) for label, table in _tables(definition).items()}
        self._not_covered = str(definition.table.get("planner", {}).get("not_covered", NOT_COVERED))
        self.questions()

    def questions(self) -> dict[str, str]:
        """Question -> the label of the playbook that asks it.

        Raises:
            PlanError: two playbooks ask the same: an answer could not be told apart.
        """
        found: dict[str, str] = {}
        for label, playbook in self._playbooks.items():
            if playbook.ask and found.setdefault(playbook.ask, label) != label:
                raise PlanError(
                    f"playbooks {found[playbook.ask]!r} and {label!r} ask the same question: word them differently, "
                    "else the answer cannot be told apart"
                )
        return found

    def problems(self, tools: Mapping[str, ToolSpec]) -> list[Problem]:
        """Every playbook whose plan does not parse against `tools`, whatever its slots hold."""
        found: list[Problem] = []
        file = self._definition.file
        for playbook in self._playbooks.values():
            anything = {name: Ref("slot") for name in language.slots(playbook.plan)}
            try:
                language.parse(playbook.plan, tools, slots=anything)
            except PlanError as error:
                shown = "/".join(file.parts[-3:])
                line = line_of(file, rf"^\s*\[playbooks\.[\"']?{playbook.label}[\"']?\]")
                found.append(Problem(shown, line, f"playbook {playbook.label!r}: {error}"))
        return found

    def tools(self, tools: Mapping[str, ToolSpec]) -> dict[str, frozenset[str]]:
        """Which tools each playbook calls; one that does not parse is in `problems`, not here."""
        found: dict[str, frozenset[str]] = {}
        for label, playbook in self._playbooks.items():
            anything = {name: Ref("slot") for name in language.slots(playbook.plan)}
            with contextlib.suppress(PlanError):
                steps = language.parse(playbook.plan, tools, slots=anything).steps
                found[label] = frozenset(step.tool for step in steps)
        return found

    async def plan(self, request: Request, routes: tuple[Route, ...], tools: Mapping[str, ToolSpec]) -> Plan:
        """One plan for everything the message asks; a hand-over when nothing of it has a playbook.

        Raises:
            PlanError: the project's `extract` failed.
        """
        plans: list[Plan] = []
        uncovered: list[str] = []
        for route in routes:
            playbook = self._playbooks.get(route.label)
            if route.label == OUT_OF_SCOPE or playbook is None:
                uncovered.append(route.label)
                continue
            plan = self._filled(playbook, request, route, tools)
            if plan.handoff:
                return plan
            plans.append(plan)
        if not plans:
            labels = ", ".join(dict.fromkeys(uncovered)) or OUT_OF_SCOPE
            return hand_over(f"no playbook covers {labels}", request, f"playbook:{labels}")
        if uncovered:
            plans.append(Plan((), literals.shown(self._not_covered)))
        return merge.merged(plans, tools)

    def _filled(self, playbook: Playbook, request: Request, route: Route, tools: Mapping[str, ToolSpec]) -> Plan:
        source = f"playbook:{playbook.label}"
        wanted = {*playbook.needs, *language.slots(playbook.plan)}
        slots = self._slots(replace(request, text=route.text)) if route.text else {}
        if not route.text or any(slots.get(name) is None for name in wanted):
            slots = {**self._slots(request), **{name: value for name, value in slots.items() if value is not None}}
        missing = [name for name in playbook.needs if slots.get(name) is None]
        missing += [name for name in language.slots(playbook.plan) if name not in slots and name not in missing]
        if missing and playbook.ask:
            return language.parse(f"say {literals.write(literals.shown(playbook.ask))}", {}, source)
        if missing:
            return hand_over(f"{playbook.label} needs {', '.join(sorted(missing))}", request, source)
        try:
            plan = language.parse(playbook.plan, tools, source, slots)
            return replace(plan, steps=tuple(replace(step, agent=route.agent) for step in plan.steps))
        except PlanError as error:
            # `problems` says whether the playbook is wrong; here a value does not fit, or the agent lacks a tool.
            _LOG.warning("playbook %s cannot be used: %s", playbook.label, error)
            return hand_over(f"{playbook.label} could not be planned", request, source)

    def _slots(self, request: Request) -> dict[str, Json]:
        try:
            found = dict(self._extract(request))
            json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
        except Exception as error:
            raise PlanError(
                f"extract() of {self._definition.name!r} failed with {type(error).__name__}: "
                "it must return a dict of JSON values for any text"
            ) from error
        return found


def hand_over(why: str, request: Request, source: str) -> Plan:
    """A plan in which a person takes over, with what they need to know."""
    said = " ".join(request.text.split())[:1000].encode("utf-8", "replace").decode()
    return language.parse(f"handoff {literals.write(f'{why}. The customer wrote: {said}')}", {}, source)


def _tables(definition: Definition) -> Mapping[str, Mapping[str, Json]]:
    tables = definition.table.get("playbooks", {})
    if not isinstance(tables, Mapping) or not all(isinstance(table, Mapping) for table in tables.values()):
        raise PlanError(f"{definition.file.name}: playbooks are tables: write [playbooks.LABEL]")
    return tables


def _read(label: str, table: Mapping[str, Json]) -> Playbook:
    where = f"[playbooks.{label}]"
    unknown = sorted(set(table) - set(_KEYS))
    if unknown:
        raise PlanError(f"{where} has no key {unknown[0]!r}; keys: {', '.join(_KEYS)}")
    plan, needs, ask = table.get("plan"), table.get("needs", []), table.get("ask", "")
    if not isinstance(plan, str) or not plan.strip():
        raise PlanError(f"{where} needs plan, a text in the plan language")
    if not isinstance(needs, list) or not all(isinstance(name, str) for name in needs):
        raise PlanError(f"{where} needs = {needs!r} is not a list of slot names")
    if not isinstance(ask, str):
        raise PlanError(f"{where} ask = {ask!r} is not a text")
    return Playbook(label, plan, tuple(needs), ask)
