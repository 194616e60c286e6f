"""Every error the product raises on purpose, on one page.

One flat type per boundary. A message names the value (`!r`), the rule it broke and the next step; the command line
prints it as one sentence without a traceback. `exit_code` 2 is the user's mistake, 1 a gate or check that failed.

    AgentopsError
    |- ConfigError      settings, environment variables
    |- ProjectError     project folders and files; carries every Problem found, not only the first
    |- StoreError       lake segments, artifacts, shared state
    |- TraceError       spans, OTLP, imported traces and chat logs
    |- AuditError       the audit log is damaged or was tampered with (exit 1)
    |- PolicyError      Cedar files, identities, approvals
    |- ModelError       weights, local models, model providers
    |- RouteError       router definitions and router data
    |- PlanError        plans that do not parse or name unknown tools
    |- ToolError        raised by a tool: a clean refusal the agent may read; never carries internals
    |- SandboxError     isolation that is missing, too weak or failed
    |- MCPError         a server or a client of the Model Context Protocol is not what was agreed
    |- HarvestError     data sets
    |- TrainError       recipes and training runs
    |- EvaluateError    suites and reports
    |- GateFailed       an evaluation gate or `check` said no (exit 1)
    |- ReleaseError     registry pointers and rollouts
    '- MissingExtra     an optional dependency is not installed
"""

import importlib
import importlib.util
from types import ModuleType

from agentops.types import Problem


class AgentopsError(Exception):
    """Base of every deliberate error. `str(error)` is safe to show to the user: no secret, no personal data."""

    exit_code = 2


class ConfigError(AgentopsError):
    """A setting has a value that is not allowed."""


class ProjectError(AgentopsError):
    """The project's folders or files are wrong. `problems` holds each with its file and line."""

    def __init__(self, message: str, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class StoreError(AgentopsError):
    """A segment, an artifact or the shared state cannot be read or written."""


class TraceError(AgentopsError):
    """A trace or chat log that came in is not what its format promises."""


class AuditError(AgentopsError):
    """The audit log is damaged, truncated or was changed."""

    exit_code = 1


class PolicyError(AgentopsError):
    """A policy, identity or approval is not acceptable."""


class ModelError(AgentopsError):
    """Weights are missing or damaged, or a model provider failed."""


class RouteError(AgentopsError):
    """A router's definition or data is not acceptable."""


class PlanError(AgentopsError):
    """A plan does not parse, or names a tool, argument or reference that does not exist."""


class ToolError(AgentopsError):
    """A tool refuses: wrong state, nothing found, limit reached. The text reaches the model and the customer.

    `clean`: it refused before anything was done. False: what was done nobody knows, and it stays charged.
    """

    clean = True


class SandboxError(AgentopsError):
    """A tool's process cannot be isolated as it must be, or the broker refuses what it asks for."""


class MCPError(AgentopsError):
    """An MCP server cannot be reached, changed its tools, or answers what the protocol does not allow."""


class HarvestError(AgentopsError):
    """Traces cannot become the data set that was asked for."""


class TrainError(AgentopsError):
    """A recipe or its data cannot be trained on."""


class EvaluateError(AgentopsError):
    """A suite or a report is not acceptable."""


class GateFailed(AgentopsError):
    """A gate or a check did not pass."""

    exit_code = 1


class ReleaseError(AgentopsError):
    """A release cannot be started, moved or read."""


class MissingExtra(AgentopsError):
    """An optional dependency is not installed."""


def require(module: str, extra: str) -> ModuleType:
    """Import `module`, or say which extra brings it.

    Args:
        module: dotted name of the optional module, for example "trl".
        extra: name of the extra in pyproject.toml, for example "train".

    Raises:
        MissingExtra: one sentence with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] == module.split(".")[0]:
            raise MissingExtra(
                f"this needs {module!r}, which is not installed: pip install 'agentops-flywheel[{extra}]' "
                f"(in a checkout: pip install -c constraints.txt -e '.[{extra}]')"
            ) from None
        raise


def available(module: str) -> bool:
    """Whether `module` could be imported, without importing it."""
    return importlib.util.find_spec(module) is not None
