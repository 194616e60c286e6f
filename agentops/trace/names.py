"""Attribute names on spans: OpenTelemetry's GenAI conventions, and ours under `agentops.*`.

Names of foreign dialects live with their readers in `trace.dialects`.

Invariant: every name the engine writes is a constant here, so what is written and what is read cannot drift apart.
A conversation turn is one trace:

    invoke_agent <agent>      root: messages in and out, tool schemas, routes, plan, digests, assignment, tenant, user
    |- route                  operation "route"
    |- plan                   operation "plan"
    |- chat <model>           operation "chat", usage
    '- execute_tool <tool>    operation "execute_tool": call id, arguments, result, status, cached, policies
"""

from agentops.trace.jsontext import dumps

__all__ = ["dumps"]  # the way values of "JSON" attributes are written; the constants are used as names.X

# ---- OpenTelemetry GenAI semantic conventions
OPERATION = "gen_ai.operation.name"
AGENT = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"  # JSON list of parts
INPUT_MESSAGES = "gen_ai.input.messages"  # JSON list of messages
OUTPUT_MESSAGES = "gen_ai.output.messages"  # JSON list of messages
TOOL_DEFINITIONS = "gen_ai.tool.definitions"  # JSON list of schemas
TOOL = "gen_ai.tool.name"
TOOL_DESCRIPTION = "gen_ai.tool.description"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"  # JSON object
TOOL_RESULT = "gen_ai.tool.call.result"  # JSON value, or text
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
MAX_TOKENS = "gen_ai.request.max_tokens"
TEMPERATURE = "gen_ai.request.temperature"
FINISH_REASONS = "gen_ai.response.finish_reasons"
ERROR_TYPE = "error.type"

# ---- values of OPERATION
INVOKE_AGENT = "invoke_agent"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"
ROUTE_OPERATION = "route"
PLAN_OPERATION = "plan"

# ---- ours
TENANT = "agentops.tenant"
USER = "agentops.user"  # pseudonym: Redactor.pseudonym("USER", user, tenant)
ROUTES = "agentops.routes"  # JSON list: fields of types.Route
PLAN = "agentops.plan"  # plan language
PLANNER = "agentops.plan.source"
REQUEST = "agentops.request.id"
STATUS = "agentops.status"  # how the turn ended: ok, pending, handoff, error
ERROR = "agentops.error"  # safe message of a turn that failed
HANDOFF = "agentops.handoff"
ASSIGNMENT = "agentops.assignment"  # JSON object: fields of types.Assignment
POLICY_DIGEST = "agentops.policy.digest"
PROJECT_DIGEST = "agentops.project.digest"
STEP_ID = "agentops.step.id"
CALL_STATUS = "agentops.call.status"  # types.CallStatus
CALL_ERROR = "agentops.call.error"  # safe message of a call that did not succeed
CACHED = "agentops.cached"
POLICIES = "agentops.policies"  # list of policy ids that determined the decision
APPROVAL_ID = "agentops.approval.id"
SOURCE = "agentops.source"  # live, simulated, import:<dialect>
TIMED = "agentops.timed"  # false: times are made up, never a latency label
TASK_ID = "agentops.task.id"  # benchmark or simulation task, where the request has one
TRIAL = "agentops.task.trial"
TRUNCATED = "agentops.truncated"  # how many attributes of this span were cut to their cap
CUT_MARK = "…[cut]"  # ends a value that was cut
