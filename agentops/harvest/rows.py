"""A row on its way through the harvest: its columns, and what the filters need to know about where it came from.

Invariant: only `columns` is ever written to a data set. Everything else (request, session, tenant) decides on
duplicates, splits and redaction and is dropped. An episode's `unknown` fields, where imports keep what they did not
understand (answer keys among it), are never read here, except for the task's id.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from agentops.harvest.funnel import Stage
from agentops.harvest.options import Options
from agentops.harvest.similar import normal
from agentops.trace.names import TASK_ID
from agentops.types import Trajectory


@dataclass(frozen=True, slots=True)
class Row:
    """One row to be. `request` is the text the episode answers."""

    columns: dict[str, Any]
    request: str
    sessions: tuple[str, ...]
    task: str
    tenant: str
    traces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one episode offers. Candidates of one `key` are assembled together, in their `order`."""

    key: str
    order: str
    row: Row
    facts: dict[str, Any]  # plain JSON, read by the kind's `assemble`


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of data set is made of episodes."""

    makes: str  # what its rows are called
    extract: Callable[[Trajectory, Options, Stage], Iterator[Candidate]]
    assemble: Callable[[Iterable[Candidate], Options, Stage], Iterator[Row]]
    content: tuple[str, ...]  # columns that carry people's or models' words: redacted and checked
    texts: Callable[[dict[str, Any]], list[str]]  # the users' words in a row's columns: checked against protected sets
    similar: Callable[[dict[str, Any]], str]  # the text by which two rows are duplicates
    by_session: bool  # rows carry conversation history, so a session may not be in both splits


def row(trajectory: Trajectory, request: str, columns: dict[str, Any]) -> Row:
    """A row of one episode."""
    sessions = (f"{trajectory.service}/{trajectory.session}",) if trajectory.session else ()
    return Row(columns, request, sessions, task(trajectory), trajectory.tenant, (trajectory.trace_id,))


def task(trajectory: Trajectory) -> str:
    """Id of the task the episode was a trial of, "" when it was nobody's exercise."""
    found = trajectory.unknown.get(TASK_ID, trajectory.unknown.get("task_id"))
    return str(found) if isinstance(found, str | int) and not isinstance(found, bool) else ""


def request_key(trajectory: Trajectory, request: str) -> str:
    """Same for episodes that were asked the same thing, never across tenants or services.

    Trials of one task are worded differently by a simulated customer: a known task counts, the wording does not.
    """
    what = ("task", task(trajectory)) if task(trajectory) else ("wording", normal(request))
    parts = (trajectory.tenant, trajectory.service, *what)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()


def each(candidates: Iterable[Candidate], _: Options, stage: Stage) -> Iterator[Row]:
    """For kinds whose candidates are rows already."""
    for candidate in candidates:
        stage.left += 1
        yield candidate.row


def joined(one: Row, other: Row, columns: dict[str, Any]) -> Row:
    """A row made of two episodes."""
    sessions, traces = (
        tuple(dict.fromkeys(both)) for both in (one.sessions + other.sessions, one.traces + other.traces)
    )
    return replace(one, columns=columns, sessions=sessions, traces=traces)
