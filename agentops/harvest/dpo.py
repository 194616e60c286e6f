"""DPO pairs: one better and one worse assistant message after the same prefix, as TRL's DPOTrainer reads them.

Invariant: `chosen` and `rejected` are one assistant message each (a turn or a plan, never a tool result) after an
identical prompt, and differ; a message whose call was denied or failed is never chosen. Each pair says where the
preference came from ("correction", "thumbs", "outcome", "latency", "policy") and by how much (`margin` in (0, 1]).
Only episodes of one tenant, service and task (or wording) are compared. `prefix` says whether both episodes literally
shared the prompt, or only the state it had led to (see states.py).
"""

from collections.abc import Iterable, Iterator
from typing import Any

from agentops.harvest.funnel import Stage
from agentops.harvest.messages import Conversation, Turn, Unusable, conversation, opening, same, schemas, users
from agentops.harvest.options import MAX_PAIRS, Options
from agentops.harvest.rows import Candidate, Kind, Row, joined, request_key, row
from agentops.harvest.screen import denied, rewritten
from agentops.harvest.states import fork, grounded
from agentops.types import Trajectory

Pair = tuple[list[Turn], Turn, Turn]  # prompt, chosen, rejected


def extract(trajectory: Trajectory, _: Options, stage: Stage) -> Iterator[Candidate]:
    """Pairs that one episode gives by itself, and the episode as one side of pairs with others."""
    try:
        whole = conversation(trajectory)
        asked = opening(trajectory)
        tools = schemas(trajectory)
    except Unusable as error:
        stage.drop(str(error))
        return
    request = asked[-1]["content"]
    made = 0
    for source, pair in (("correction", _corrected(trajectory, whole)), ("policy", _obeyed(trajectory, whole))):
        if isinstance(pair, str):
            stage.drop(pair)
        elif pair is not None:
            made += 1
            columns = _columns(pair, tools, source, 1.0, (trajectory.trace_id,) * 2)
            order = f"{trajectory.trace_id}/{source}"
            yield Candidate(order, order, row(trajectory, request, columns), {"pair": True})
    if trajectory.outcome.success is not None:
        made += 1
        cached = any(step.cached for step in trajectory.steps)
        facts = {
            "pair": False,
            "asked": len(asked),
            "messages": whole.messages,
            "statuses": whole.statuses,
            "tools": tools,
            "plan": trajectory.plan,
            "success": trajectory.outcome.success,
            "denied": denied(trajectory),
            "thumbs": trajectory.outcome.source.startswith("feedback"),
            # Time is comparable only between runs of one clock, and a cached answer says nothing of the plan's speed.
            "clock": trajectory.source if trajectory.timed and not cached else "",
            "seconds": trajectory.ended_at - trajectory.started_at,
        }
        key = request_key(trajectory, request)
        yield Candidate(key, trajectory.trace_id, row(trajectory, request, {"trace_id": trajectory.trace_id}), facts)
    stage.left += made


def assemble(candidates: Iterable[Candidate], options: Options, stage: Stage) -> Iterator[Row]:
    """Pairs between the episodes of one request; ready pairs pass."""
    good: list[Candidate] = []
    bad: list[Candidate] = []
    for one in candidates:
        if one.facts["pair"]:
            stage.left += 1
            yield one.row
            continue
        side = good if one.facts["success"] == 1 else bad
        if len(side) < MAX_PAIRS:
            side.append(one)
        else:
            stage.drop("more episodes of one request than are compared")
    if not good or not (bad or len(good) > 1):
        stage.drop("nothing to compare with", len(good) + len(bad))
        return
    made: list[Row] = []
    seen: list[Pair] = []
    reasons: list[str] = []
    for better, worse, source, margin in [*_by_outcome(good, bad), *_by_latency(good, options)]:
        if len(made) == options.max_pairs:
            break
        pair = _plans(better, worse) or _divergence(better, worse)
        prefix = "identical"
        if isinstance(pair, str) and (moved := _moved(better, worse)) is not None:
            pair, prefix = moved, "same state"
        if isinstance(pair, str):
            reasons.append(pair)
        elif not any(_equal(pair, other) for other in seen):
            seen.append(pair)
            traces = (better.row.traces[0], worse.row.traces[0])
            columns = _columns(pair, better.facts["tools"], source, margin, traces, prefix)
            made.append(joined(better.row, worse.row, columns))
    if not made:
        stage.drop(max(reasons, key=reasons.count) if reasons else "no difference to learn", len(good) + len(bad))
    stage.left += len(made)
    yield from made


def _corrected(trajectory: Trajectory, whole: Conversation) -> Pair | str | None:
    feedback = rewritten(trajectory)
    last = whole.messages[-1]
    if feedback is None:
        return None
    if last["role"] != "assistant" or last.get("tool_calls"):
        return "a correction without an answer to correct"
    chosen = {"role": "assistant", "content": feedback.corrected_answer.strip()}
    return (whole.messages[:-1], chosen, last) if not same(chosen, last) else "a correction that changes nothing"


def _obeyed(trajectory: Trajectory, whole: Conversation) -> Pair | str | None:
    """The first message with a denied call against the same message without it, or against what was done instead."""
    at = next((at for at, statuses in enumerate(whole.statuses) if "denied" in statuses), None)
    if at is None:
        return None
    rejected, statuses = whole.messages[at], whole.statuses[at]
    allowed = [call for call, status in zip(rejected["tool_calls"], statuses, strict=True) if status == "ok"]
    if allowed:
        return whole.messages[:at], {**rejected, "tool_calls": allowed}, rejected
    after = next((k for k in range(at + 1, len(whole.messages)) if whole.messages[k]["role"] != "tool"), None)
    if after is None or whole.messages[after]["role"] != "assistant" or trajectory.outcome.success == 0:
        return "a denied call and nothing better known"
    if any(status != "ok" for status in whole.statuses[after]):
        return "a denied call and what followed was no better"
    return whole.messages[:at], whole.messages[after], rejected


def _by_outcome(good: list[Candidate], bad: list[Candidate]) -> Iterator[tuple[Candidate, Candidate, str, float]]:
    for worse in bad:
        # The longest common prefix isolates the step that made the difference best.
        for better in sorted(good, key=lambda one: (-_shared(one, worse), one.order)):
            thumbs = better.facts["thumbs"] and worse.facts["thumbs"]
            yield better, worse, "thumbs" if thumbs else "outcome", 1.0


def _by_latency(good: list[Candidate], options: Options) -> Iterator[tuple[Candidate, Candidate, str, float]]:
    timed = [one for one in good if one.facts["clock"] and one.facts["seconds"] > 0]
    timed.sort(key=lambda one: (one.facts["seconds"], one.order))
    for better in timed:
        for worse in reversed(timed):
            gap = 1.0 - better.facts["seconds"] / worse.facts["seconds"]
            if gap >= options.latency_gap and gap > 0 and better.facts["clock"] == worse.facts["clock"]:
                yield better, worse, "latency", round(gap, 4)


def _plans(better: Candidate, worse: Candidate) -> Pair | str | None:
    """Two plans for the same request; None when one of the episodes was not planned."""
    plans = (better.facts["plan"], worse.facts["plan"])
    if not all(plans):
        return None
    if better.facts["denied"]:
        return "the better episode has a denied call"
    if plans[0].strip() == plans[1].strip():
        return "same plan, so the plan made no difference"
    prompt = better.facts["messages"][: better.facts["asked"]]
    other = worse.facts["messages"][: worse.facts["asked"]]
    if len(prompt) != len(other) or not all(map(same, prompt, other)):
        return "no shared prefix"
    return prompt, {"role": "assistant", "content": plans[0]}, {"role": "assistant", "content": plans[1]}


def _divergence(better: Candidate, worse: Candidate) -> Pair | str:
    """The first assistant messages in which two episodes part."""
    at = _shared(better, worse)
    mine, theirs = better.facts["messages"], worse.facts["messages"]
    if at < better.facts["asked"] or at >= len(mine) or at >= len(theirs):
        return "no shared prefix"
    if mine[at]["role"] != "assistant" or theirs[at]["role"] != "assistant":
        return "the episodes part at a user's or a tool's message"
    if any(status != "ok" for status in better.facts["statuses"][at]):
        return "the better episode's call failed or was denied"
    return mine[:at], mine[at], theirs[at]


def _moved(better: Candidate, worse: Candidate) -> Pair | None:
    """The better episode's step in the worse one's conversation, where both had come to the same state."""
    mine, theirs = better.facts["messages"], worse.facts["messages"]
    at = None if better.facts["plan"] or worse.facts["plan"] else fork(mine, theirs)
    if at is None or any(status != "ok" for status in better.facts["statuses"][at[0]]):
        return None
    prompt, step = theirs[: at[1]], mine[at[0]]
    return (prompt, step, theirs[at[1]]) if grounded(step, prompt) else None


def _shared(one: Candidate, other: Candidate) -> int:
    pairs = zip(one.facts["messages"], other.facts["messages"], strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if not same(a, b)), min(_length(one), _length(other)))


def _length(one: Candidate) -> int:
    return len(one.facts["messages"])


def _equal(one: Pair, other: Pair) -> bool:
    return (
        len(one[0]) == len(other[0])
        and all(map(same, one[0], other[0]))
        and same(one[1], other[1])
        and same(one[2], other[2])
    )


def _columns(
    pair: Pair, tools: list[Turn], source: str, margin: float, traces: tuple[str, str], prefix: str = "identical"
) -> dict[str, Any]:
    prompt, chosen, rejected = pair
    return {
        "prompt": prompt,
        "chosen": [chosen],
        "rejected": [rejected],
        "tools": tools,
        "margin": margin,
        "source": source,
        "prefix": prefix,
        "chosen_trace_id": traces[0],
        "rejected_trace_id": traces[1],
    }


def _similar(columns: dict[str, Any]) -> str:
    """The last thing asked and both answers: a long shared prompt must not make two different pairs equal."""
    parts = [*users(columns["prompt"])[-1:]]
    for side in ("chosen", "rejected"):
        for message in columns[side]:
            parts.append(side + " " + message["content"])
            parts += [str(call["function"]) for call in message.get("tool_calls", ())]
    return "\n".join(parts)


KIND = Kind(
    makes="pairs",
    extract=extract,
    assemble=assemble,
    content=("prompt", "chosen", "rejected", "tools"),
    texts=lambda columns: users(columns["prompt"]),
    similar=_similar,
    by_session=True,
)
