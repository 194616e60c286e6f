"""GRPO prompts and distillation prompts: requests without their answers (GRPO), or with the teacher's (distillation).

Invariant: a GRPO prompt's success is decidable: at least one recorded trial of it has a known outcome. One request
(same tenant, service and wording; or one task) is one row, however often it was asked. A prompt holds nothing of its
answer.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from agentops.harvest.funnel import Stage
from agentops.harvest.messages import Unusable, conversation, opening, schemas, users
from agentops.harvest.options import Options
from agentops.harvest.rows import Candidate, Kind, Row, request_key, row
from agentops.harvest.screen import denied, inaction
from agentops.types import Trajectory

TRAINABLE = (0.1, 0.9)  # pass rates between which a group of rollouts usually has both outcomes


def extract_grpo(trajectory: Trajectory, options: Options, stage: Stage) -> Iterator[Candidate]:
    """The episode as one trial of its request."""
    try:
        prompt = opening(trajectory)
        if any(message["role"] == "tool" for message in prompt):
            raise Unusable("earlier tool calls in the prompt: the world they left cannot be set up again")
    except Unusable as error:
        stage.drop(str(error))
        return
    stage.left += 1
    request = prompt[-1]["content"]
    made = row(trajectory, request, {"prompt": prompt})
    facts = {
        "success": trajectory.outcome.success,
        "inaction": not options.include_inaction and inaction(trajectory, options),
    }
    yield Candidate(request_key(trajectory, request), trajectory.trace_id, made, facts)


def assemble_grpo(candidates: Iterable[Candidate], _: Options, stage: Stage) -> Iterator[Row]:
    """One prompt per request, with how often it was solved. A reward for doing nothing is no pass and no trial."""
    first: Candidate | None = None
    trials = passes = idle = 0
    for one in candidates:
        first = first or one
        if one.facts["inaction"]:
            idle += 1
            continue
        trials += 1
        passes += one.facts["success"] == 1
    if first is None:
        return
    if not trials:
        stage.drop("inaction: every trial was rewarded for doing nothing", idle)
        return
    stage.drop("another trial of the same request", trials + idle - 1)
    stage.left += 1
    rate = passes / trials
    band = "too hard" if rate < TRAINABLE[0] else "too easy" if rate > TRAINABLE[1] else "trainable"
    columns = {
        "prompt": first.row.columns["prompt"],
        "task_id": first.row.task or f"request/{first.key[:16]}",
        "trace_id": first.row.traces[0],
        "trials": trials,
        "pass_rate": rate,
        "band": band if trials > 1 else "one trial",
    }
    yield replace(first.row, columns=columns)


def extract_distill(trajectory: Trajectory, _: Options, stage: Stage) -> Iterator[Candidate]:
    """The request, the message with which a successful teacher continued it, and its final answer."""
    try:
        prompt = opening(trajectory)
        tools = schemas(trajectory)
    except Unusable as error:
        stage.drop(str(error))
        return
    teacher: list[dict] = []
    if trajectory.outcome.success == 1 and not denied(trajectory):
        try:
            whole = conversation(trajectory).messages
            teacher = [one for one in whole[len(prompt) : len(prompt) + 1] if one["role"] == "assistant"]
        except Unusable:
            teacher = []  # the prompt alone is enough for on-policy distillation
    stage.left += 1
    request = prompt[-1]["content"]
    columns = {
        "prompt": prompt,
        "tools": tools,
        "teacher": teacher,
        "answer": trajectory.answer if teacher else "",
        "plan": trajectory.plan if teacher else "",
        "teacher_model": next((call.model for call in trajectory.model_calls if not call.error), ""),
        "trace_id": trajectory.trace_id,
    }
    yield Candidate(request_key(trajectory, request), trajectory.trace_id, row(trajectory, request, columns), {})


def assemble_distill(candidates: Iterable[Candidate], _: Options, stage: Stage) -> Iterator[Row]:
    """One prompt per request; the first with a teacher's answer when there is one."""
    best: Candidate | None = None
    seen = 0
    for one in candidates:
        seen += 1
        if best is None or (one.row.columns["teacher"] and not best.row.columns["teacher"]):
            best = one
    if best is not None:
        stage.drop("the same request again", seen - 1)
        stage.left += 1
        yield best.row


def _texts(columns: dict) -> list[str]:
    return users(columns["prompt"])


def _similar(columns: dict) -> str:
    return "\n".join(users(columns["prompt"]))


GRPO = Kind("prompts", extract_grpo, assemble_grpo, ("prompt",), _texts, _similar, by_session=True)
DISTILL = Kind(
    "prompts",
    extract_distill,
    assemble_distill,
    ("prompt", "tools", "teacher", "answer", "plan"),
    _texts,
    _similar,
    by_session=True,
)
