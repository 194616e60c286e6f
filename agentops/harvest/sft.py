"""SFT rows: whole successful episodes as {"messages", "tools", ...} in the form TRL's SFTTrainer reads.

Invariant: every tool call of a row has its result in the row, every argument is an object, every content a string, and
no call of the row was denied. A row is the recorded conversation; nothing is rewritten.
"""

from collections.abc import Iterator

from agentops.harvest.funnel import Stage
from agentops.harvest.messages import Unusable, called, conversation, opening, schemas, spoken, users
from agentops.harvest.options import Options
from agentops.harvest.rows import Candidate, Kind, each, row
from agentops.types import Trajectory


def extract(trajectory: Trajectory, _: Options, stage: Stage) -> Iterator[Candidate]:
    """The episode as one row, or a reason why it cannot be one."""
    try:
        messages = conversation(trajectory).messages
        request = opening(trajectory)[-1]["content"]
        tools = schemas(trajectory)
        offered = {tool["function"]["name"] for tool in tools}
        if offered and not offered.issuperset(called(messages)):
            raise Unusable("a call of a tool that was not offered")
    except Unusable as error:
        stage.drop(str(error))
        return
    stage.left += 1
    columns = {
        "messages": messages,
        "tools": tools,
        "trace_id": trajectory.trace_id,
        "source": trajectory.source,
        "outcome": trajectory.outcome.source,
    }
    yield Candidate(trajectory.trace_id, trajectory.trace_id, row(trajectory, request, columns), {})


KIND = Kind(
    makes="rows",
    extract=extract,
    assemble=each,
    content=("messages", "tools"),
    texts=lambda columns: users(columns["messages"]),
    similar=lambda columns: spoken(columns["messages"]),
    by_session=True,
)
