"""The one question every call is asked: may this run make this call? Cedar answers, default deny.

Invariant: the only allow is Cedar's `Allow` without a single evaluation error. Cedar skips a forbid whose condition
fails, so any error denies; so does a malformed request, a changed tool, an unknown fact and anything unforeseen.
A policy set never changes: loading again makes another one with another digest.
"""

import functools
import hashlib
import itertools
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path

import cedarpy
import orjson

from agentops.errors import PolicyError
from agentops.parsers import Url
from agentops.policy.arguments import argument_facts, argument_types, arguments_of, urls
from agentops.policy.cedar import Policy, read_policies
from agentops.policy.facts import ADDRESSES, found_addresses, gateway_facts, granted_roles, source_facts
from agentops.policy.schema import generate_schema
from agentops.types import AgentSpec, Decision, Json, Principal, Run, ToolCall, ToolSpec

_LOG = logging.getLogger(__name__)
_RUN = {"type": "Run", "id": "run"}  # one id for all runs: what differs are the attributes
_PRINCIPALS = 4096  # entity sets kept: one per (principal, agent)
_GUESSES = ("8.8.8.8", "127.0.0.1")  # a public address and one that is not, for decisions before a name is looked up
_MAX_GUESSED = 3  # web addresses of one call
_UNFOUND = ("unknown-host",)
_ESCAPE = re.compile(r"\\(?:u\{([0-9A-Fa-f]{1,6})\}|x([0-9A-Fa-f]{2}))")  # in a quoted name: it names the same fact


class PolicySet:
    """A project's policies, parsed once."""

    def __init__(self, policies: list[Policy], schema: str, tools: Mapping[str, ToolSpec], digest: str) -> None:
        """Use `load`; this takes what `read_policies` has already accepted."""
        self.digest = digest
        self.policies = {policy.id: policy for policy in policies}
        self._tools = dict(tools)
        self._arguments = {name: arguments_of(spec) for name, spec in tools.items()}
        self._required = {
            name: frozenset(fact for fact in argument_types(spec) if not fact.endswith("?"))
            for name, spec in tools.items()
        }
        self._schema = cedarpy.Schema.from_str(schema)
        # A fact that no policy names decides nothing: leaving it out saves half of a decision's time.
        text = _ESCAPE.sub(lambda match: chr(int(match[1] or match[2], 16)), " ".join(one.text for one in policies))
        self._named = frozenset(re.findall(r"\w+", text))
        self._all = cedarpy.PolicySet.from_str("\n".join(policy.text for policy in policies))
        # Without the suspending forbids: what remains once the people they name have approved.
        self._approved = cedarpy.PolicySet.from_str("\n".join(policy.text for policy in policies if not policy.advice))
        self._base = cedarpy.Entities.from_json_str(
            json.dumps([_tool_entity(spec) for spec in tools.values()]), self._schema
        )
        self._entities = functools.lru_cache(maxsize=_PRINCIPALS)(self._entities_of)

    @classmethod
    def load(cls, folder: Path, tools: Mapping[str, ToolSpec], agents: Mapping[str, AgentSpec]) -> "PolicySet":
        """Every policy of `folder`/*.cedar, strictly validated against the schema of these tools and agents.

        Raises:
            PolicyError: with every problem (file, line): parse errors, missing or repeated ids, schema violations,
                no policy at all.
        """
        schema = generate_schema(tools, agents)
        policies, problems = read_policies(folder, tools, schema)
        if problems:
            listing = "\n".join(f"  {problem}" for problem in problems)
            raise PolicyError(f"the policies have {len(problems)} problem(s), no call is allowed:\n{listing}")
        hasher = hashlib.sha256()
        for part in (schema, *(f"{policy.file}\n{policy.text}" for policy in policies)):
            data = part.encode()
            hasher.update(b"%d\n" % len(data) + data)
        return cls(policies, schema, tools, f"sha256:{hasher.hexdigest()}")

    def decide(self, run: Run, call: ToolCall, spec: ToolSpec, facts: Mapping[str, Json]) -> Decision:
        """What the policies say of one call. Never raises: whatever goes wrong is a deny that says so.

        Args:
            run: who asks, through which agent.
            call: canonical arguments; the tool must later receive exactly these.
            spec: the tool's contract, which must be the one the policies were loaded with.
            facts: `calls_used`, `money_used_cents` (this call and those in flight included), `untrusted_seen`,
                `isolation`, `sources` by argument, `addresses` by argument (see `hosts`), and `approved`: true, or
                the approving roles joined with "+". A missing one is taken at its worst.
        """
        try:
            if found_addresses(facts) is None and self._to_look_up(call, spec):
                return self._before_lookup(run, call, spec, facts)
            return self._decide(run, call, spec, facts)
        except PolicyError as error:
            return self._deny(f"{spec.name}: {error}", "malformed-call")
        except Exception as error:  # noqa: BLE001 - fail closed: nothing unforeseen may turn into an allow
            _LOG.error("policy decision on %s failed: %s", spec.name, type(error).__name__)
            return self._deny(f"{spec.name}: the policy decision failed", "decision-failed")

    def hosts(self, run: Run, call: ToolCall, spec: ToolSpec, facts: Mapping[str, Json]) -> dict[str, Url]:
        """The web addresses, by argument, whose hosts must be looked up before this call can be decided on.

        Looking up a name tells it to whoever serves that domain, so nothing is returned for a call that would be
        denied, or would wait for a person, whatever was found. (A policy that names an `_address` fact makes the
        answer unforeseeable: then the name is looked up first.)
        """
        if found_addresses(facts) is not None:
            return {}
        found = self._to_look_up(call, spec)
        if found and self.decide(run, call, spec, facts).policies == _UNFOUND:
            return found
        return {}

    def _to_look_up(self, call: ToolCall, spec: ToolSpec) -> dict[str, Url]:
        found = urls(self._arguments.get(spec.name, {}), call.arguments)
        return {name: url for name, url in found.items() if not url.literal}

    def _before_lookup(self, run: Run, call: ToolCall, spec: ToolSpec, facts: Mapping[str, Json]) -> Decision:
        """The decision where it is the same whatever the names resolve to; else a denial until they are looked up."""
        names = list(self._to_look_up(call, spec))
        asked = any(f"{name}_address" in policy.text for name in names for policy in self.policies.values())
        if not asked and len(names) <= _MAX_GUESSED:
            guesses = [
                {name: [address] for name, address in zip(names, chosen, strict=True)}
                for chosen in itertools.product(_GUESSES, repeat=len(names))
            ]
            decisions = [self._decide(run, call, spec, {**facts, ADDRESSES: guess}) for guess in guesses]
            if not any(decision.effect == "allow" for decision in decisions):
                return next((one for one in decisions if one.effect == "approve"), decisions[0])
        return self._deny(f"{spec.name}: the host of {', '.join(map(repr, names))} was not looked up", *_UNFOUND)

    def _decide(self, run: Run, call: ToolCall, spec: ToolSpec, facts: Mapping[str, Json]) -> Decision:
        known = self._tools.get(call.tool)
        if known is None or spec.name != call.tool:
            return self._deny(f"tool {call.tool!r} does not exist", "unknown-tool")
        if known is not spec and known != spec:
            return self._deny(f"tool {call.tool!r} changed since the policies were loaded", "changed-tool")
        granted = granted_roles(facts)
        request = {
            "principal": _RUN,
            "action": {"type": "Action", "id": spec.name},
            "resource": {"type": "Tool", "id": spec.name},
            "context": {
                "args": self._wanted(self._argument_facts(call, facts)),
                "g": self._wanted(gateway_facts(call, facts)),
                "source": self._wanted(source_facts(self._arguments[spec.name], facts)),
            },
        }
        entities = self._entities(run.principal, run.agent)
        verdict, ids, errors = self._ask(request, self._all, entities)
        if errors or verdict not in (cedarpy.Decision.Allow, cedarpy.Decision.Deny):
            return self._failed(spec, errors)
        if verdict is cedarpy.Decision.Allow:
            return Decision("allow", f"{spec.name}: allowed by {', '.join(ids)}", ids, self.digest)
        if not ids:
            return self._default_deny(run, spec)
        hard = tuple(name for name in ids if not self.policies[name].advice)
        if hard:
            reason = self.policies[hard[0]].reason or f"forbidden by policy {hard[0]}"
            return Decision("deny", f"{spec.name}: {reason}", hard, self.digest)
        # Only suspending forbids apply. Approval can lift them, but never stands in for a permit.
        verdict, permits, errors = self._ask(request, self._approved, entities)
        if errors:
            return self._failed(spec, errors)
        if verdict is not cedarpy.Decision.Allow:
            return self._default_deny(run, spec)
        roles = sorted({role for name in ids for role in self.policies[name].advice.split("+")})
        if granted is None or granted >= set(roles):
            reason = f"{spec.name}: allowed by {', '.join(permits)} after approval ({', '.join(ids)})"
            return Decision("allow", reason, permits + ids, self.digest)
        reason = self.policies[ids[0]].reason or f"policy {ids[0]} asks for a person's approval"
        return Decision("approve", f"{spec.name}: {reason}", ids, self.digest, "+".join(roles))

    def _ask(
        self, request: dict[str, Json], policies: cedarpy.PolicySet, entities: cedarpy.Entities
    ) -> tuple[cedarpy.Decision, tuple[str, ...], list[str]]:
        """Cedar's verdict, the ids of the policies that determined it (sorted), and evaluation errors.

        The policies were validated against the schema when they were loaded, and every fact was typed on its way here:
        checking each request against the schema once more would double the time of a decision.
        """
        result = cedarpy.is_authorized(request, policies, entities)
        names = result.diagnostics.id_annotations_by_reason
        ids = tuple(sorted(names[reason] for reason in result.diagnostics.reasons))
        return result.decision, ids, result.diagnostics.errors

    def _argument_facts(self, call: ToolCall, facts: Mapping[str, Json]) -> dict[str, Json]:
        """The facts of the arguments, exactly those that the schema declares.

        Raises:
            PolicyError: they do not fit; names the argument only.
        """
        found = argument_facts(self._arguments[call.tool], call.arguments, found_addresses(facts) or {})
        missing = self._required[call.tool] - found.keys()
        if missing:
            raise PolicyError(f"argument {min(missing)!r} is missing")
        try:
            orjson.dumps(found)
        except orjson.JSONEncodeError:
            raise PolicyError("an argument is not valid Unicode text") from None
        return found

    def mentions(self, name: str) -> bool:
        """Whether any policy has `name` in it: a fact that none has need not be worked out."""
        return name in self._named

    def _wanted(self, facts: dict[str, Json]) -> dict[str, Json]:
        return {name: value for name, value in facts.items() if name in self._named or not name.isidentifier()}

    def _failed(self, spec: ToolSpec, errors: list[str]) -> Decision:
        # Cedar's message repeats the context, and so the arguments: it stays out of reasons and logs.
        kind = "a policy failed while it was evaluated" if _in_policy(errors) else "the call does not fit the schema"
        return self._deny(f"{spec.name}: {kind}", "evaluation-error" if _in_policy(errors) else "malformed-call")

    def _default_deny(self, run: Run, spec: ToolSpec) -> Decision:
        missing = sorted(spec.scopes - run.scopes)
        detail = f" (missing scopes: {', '.join(missing)})" if missing else ""
        return self._deny(f"{spec.name}: no policy permits this call{detail}", "default-deny")

    def _deny(self, reason: str, rule: str) -> Decision:
        return Decision("deny", reason, (rule,), self.digest)

    def _entities_of(self, principal: Principal, agent: AgentSpec) -> cedarpy.Entities:
        entity = {
            "uid": _RUN,
            "attrs": {
                "actors": list(principal.actors),
                "agent": agent.name,
                "max_calls": agent.max_calls,
                "max_money_cents": agent.max_money_cents,
                "roles": sorted(principal.roles),
                "scopes": sorted(principal.scopes & agent.scopes),
                "tenant": principal.tenant,
                "tools": sorted(agent.tools),
                "user": principal.user,
            },
            "parents": [{"type": "Agent", "id": agent.name}],
        }
        return self._base.with_added_json_str(json.dumps([entity]), self._schema)


def _in_policy(errors: list[str]) -> bool:
    return any("evaluating policy" in error for error in errors)


def _tool_entity(spec: ToolSpec) -> dict[str, Json]:
    return {
        "uid": {"type": "Tool", "id": spec.name},
        "attrs": {
            "confidentiality": spec.labels.confidentiality,
            "effect": spec.effect,
            "idempotent": spec.idempotent,
            "integrity": spec.labels.integrity,
            "name": spec.name,
            "pack": spec.pack,
            "scopes": sorted(spec.scopes),
        },
        "parents": [],
    }
