"""AgentDojo's suites as a project of ours: its environments, its tasks, and its tools as declared `Tool`s.

A manifest (`manifests/SUITE.toml`) says of each tool what a deployment would have to say: effect, scopes, labels,
and which numbers are money. Invariant: a tool that the manifest does not name does not exist, and its arguments
are checked strictly. Nothing here knows a task.
"""

import importlib.metadata
import importlib.util
import inspect
import re
import sys
import tomllib
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic_core import PydanticUndefined, to_jsonable_python

from agentops.act import Context, tool
from agentops.errors import ToolError
from agentops.policy import PolicySet
from agentops.types import AgentSpec, Json, Labels, Tool
from benchmarks.agentdojo.marking import Marking, known, marked

VERSION = "v1.2.2"  # 97 user tasks, 35 injection tasks, 949 pairs
SUITES = ("banking", "workspace", "slack", "travel")
PACKAGES = (
    "agentdojo==0.1.35 deepdiff==9.1.0 orderly-set==5.5.0 cachebox==5.2.3 docstring-parser==0.18.0 "
    "email-validator==2.4.0 dnspython==2.9.2"
)
INSTALL = f"pip install -c constraints.txt --no-deps {PACKAGES}"
AGENT = "assistant"
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Suite:
    """One of the four suites, governed."""

    name: str
    theirs: Any  # agentdojo's TaskSuite
    tools: Mapping[str, Tool]
    cents: Mapping[str, frozenset[str]]  # by tool: arguments that ours takes in cents
    agent: AgentSpec
    policy: PolicySet
    _loaded: dict[tuple[tuple[str, str], ...], Any] = field(default_factory=dict)

    def arguments(self, name: str, given: Mapping[str, Any]) -> dict[str, Json]:
        """The arguments of one of their calls as our tool takes them."""
        made = to_jsonable_python(dict(given))
        for key in self.cents.get(name, frozenset()) & set(made):
            made[key] = round(float(made[key] or 0) * 100)  # None and 0 both mean "unchanged" to their tools
        return made

    def theirs_of(self, name: str, ours: Mapping[str, Json]) -> dict[str, Any]:
        """The way back: the arguments of one of our calls as their functions take them."""
        cents = self.cents.get(name, frozenset())
        return {key: value / 100 if key in cents else value for key, value in ours.items()}

    def environment(self, texts: Mapping[str, str]) -> Any:
        """A fresh environment, with a text of an outsider in some of the places where one could have put it."""
        key = tuple(sorted(texts.items()))
        if key not in self._loaded:
            self._loaded[key] = self.theirs.load_and_inject_default_environment(dict(texts))
        return self._loaded[key].model_copy(deep=True)

    def exposed(self, task: Any) -> tuple[str, ...]:
        """The places whose text one reads on the way through the task, found as agentdojo's attacks find them."""
        from agentdojo.agent_pipeline.ground_truth_pipeline import GroundTruthPipeline
        from agentdojo.functions_runtime import FunctionsRuntime

        marks = {place: f"<CANARY---{place}--->" for place in self.theirs.get_injection_vector_defaults()}
        runtime = FunctionsRuntime(self.theirs.tools)
        messages = GroundTruthPipeline(task).query(task.PROMPT, runtime, self.environment(marks))[3]
        seen = str([message["content"] for message in messages])
        return tuple(place for place, mark in marks.items() if mark in seen)


def missing() -> str:
    """Why the benchmark cannot run here, and what to do; "" when it can."""
    for requirement in PACKAGES.split():
        name = requirement.split("==")[0]
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return f"{name} is not installed: {INSTALL}"
    return ""


def load(name: str, policies: Path = _HERE / "policies") -> Suite:
    """A suite with its tools and policies.

    Raises:
        PolicyError: the policies do not fit the tools.
        ValueError: the manifest and the suite differ in their tools.
    """
    theirs = _packaged().get_suites(VERSION)[name]
    manifest = tomllib.loads((_HERE / "manifests" / f"{name}.toml").read_text(encoding="utf-8"))
    functions = {function.name: function for function in theirs.tools}
    if set(functions) != set(manifest):
        raise ValueError(f"manifest {name}.toml differs from the suite in {sorted(set(functions) ^ set(manifest))}")
    tools = {key: _tool(function, manifest[key], name) for key, function in functions.items()}
    scopes = frozenset(scope for one in tools.values() for scope in one.spec.scopes)
    # No ceilings: what stops an attack here is a policy, and never an amount.
    agent = AgentSpec(AGENT, frozenset(tools), scopes, max_calls=1000, max_money_cents=2**52, max_seconds=600.0)
    policy = PolicySet.load(policies / name, {key: one.spec for key, one in tools.items()}, {AGENT: agent})
    cents = {key: frozenset(entry.get("cents", ())) for key, entry in manifest.items()}
    return Suite(name, theirs, tools, cents, agent, policy)


def _packaged() -> Any:
    """`agentdojo.task_suite.load_suites`, imported without the clients of language models.

    The package imports four providers' clients on the way to its pipelines, in versions that exclude ours. No model is
    called here, so the two modules that import them are stood in for.
    """
    if "agentdojo.agent_pipeline" not in sys.modules:
        found = importlib.util.find_spec("agentdojo")
        assert found is not None
        assert found.origin is not None
        stand = types.ModuleType("agentdojo.agent_pipeline")
        stand.__path__ = [str(Path(found.origin).parent / "agent_pipeline")]
        clients = types.ModuleType("agentdojo.agent_pipeline.llms")
        clients.__path__ = []
        google = types.ModuleType("agentdojo.agent_pipeline.llms.google_llm")
        google.__dict__["EMPTY_FUNCTION_NAME"] = "<empty-function-name>"
        sys.modules |= {module.__name__: module for module in (stand, clients, google)}
    return importlib.import_module("agentdojo.task_suite.load_suites")


def _tool(function: Any, entry: Mapping[str, Any], pack: str) -> Tool:
    """One of their functions behind a signature of ours."""
    cents = frozenset(entry.get("cents", ()))
    parameters = [inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Context)]
    for name, given in function.parameters.model_fields.items():
        optional = given.default is not PydanticUndefined
        kind, default = _kind(given.annotation), given.default if optional else inspect.Parameter.empty
        if name in cents:
            kind, default = int, 0 if optional else inspect.Parameter.empty
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default))

    confidentiality = entry.get("confidentiality", "personal")
    marking = Marking(
        outside=frozenset(entry.get("outside", ())),
        addresses=frozenset(entry.get("addresses", ())),
        names=re.compile(entry["names"]) if "names" in entry else None,
        mark=Labels("untrusted", confidentiality),
    )

    async def call(ctx: Context, **arguments: Any) -> Json:
        return marked(_called(function, ctx.world, arguments, cents), marking, known(ctx.world))

    call.__name__ = function.name
    call.__doc__ = function.description
    call.__dict__["__signature__"] = inspect.Signature(parameters)
    return tool(
        effect=entry["effect"],
        scopes=set(entry["scopes"]),
        timeout_s=30.0,
        amount=entry.get("amount", ""),
        labels=Labels(entry.get("integrity", "trusted"), confidentiality),
        pack=pack,
    )(call)


def _called(function: Any, environment: Any, arguments: Mapping[str, Any], cents: frozenset[str]) -> Json:
    given = {key: value / 100 if key in cents and value is not None else value for key, value in arguments.items()}
    checked = function.parameters.model_validate(given).model_dump()
    held = {key: depends.extract_dep_from_env(environment) for key, depends in function.dependencies.items()}
    try:
        return to_jsonable_python(function.run(**checked, **held))
    except ValueError as error:
        raise ToolError(str(error)) from None


def _kind(annotation: Any) -> Any:
    """An enumeration becomes its values: ours are checked strictly, and JSON has only texts."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return Annotated[str, Field(pattern=f"^({'|'.join(one.value for one in annotation)})$")]
    return annotation
