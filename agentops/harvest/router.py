"""Router rows: {"text", "label", "trace_id", "source"} from corrections and from confirmed routes.

Invariant: one text has one label in the data set. A correction beats a confirmation and a newer correction an older
one; what is left in conflict is dropped and counted. Requests that fit nothing keep the label out_of_scope.
"""

from collections.abc import Iterable, Iterator

from agentops.harvest.funnel import Stage
from agentops.harvest.messages import last_request
from agentops.harvest.options import Options
from agentops.harvest.rows import Candidate, Kind, Row, row
from agentops.harvest.screen import correction
from agentops.harvest.similar import normal
from agentops.types import OUT_OF_SCOPE, Trajectory

MAX_TEXT = 4_000  # characters; routers read the first few hundred


def extract(trajectory: Trajectory, options: Options, stage: Stage) -> Iterator[Candidate]:
    """The request's text, or one per clause, with the right label as far as anyone said it."""
    request = last_request(trajectory)
    feedback = correction(trajectory)
    routes = trajectory.routes
    if feedback is not None:
        labels, source, at = feedback.corrected_labels, "correction", feedback.at
        if len(labels) == 1:
            pairs = [(request, labels[0])]
        elif len(labels) == len(routes) and all(one.text.strip() for one in routes):
            pairs = [(one.text.strip(), label) for one, label in zip(routes, labels, strict=True)]
        else:
            stage.drop("a correction names several labels and the clauses are not known")
            return
    else:
        source, at, pairs = "confirmed", 0.0, []
        if not routes:
            stage.drop("no route recorded")
        for one in routes:
            if one.confidence < options.min_confidence:
                stage.drop("confirmed with too little confidence")
            elif len(routes) > 1 and not one.text.strip():
                stage.drop("several routes and the clauses are not known")
            else:
                pairs.append((one.text.strip() or request, one.label))
    for number, (text, label) in enumerate(pairs):
        if not normal(text):
            stage.drop("no words")
        elif len(text) > MAX_TEXT:
            stage.drop(f"longer than {MAX_TEXT} characters")
        elif options.labels and label not in options.labels and label != OUT_OF_SCOPE:
            stage.drop("label is not one of the router's")
        else:
            columns = {"text": text, "label": label, "trace_id": trajectory.trace_id, "source": source}
            stage.left += 1
            order = f"{trajectory.trace_id}/{number:04}"
            yield Candidate(normal(text), order, row(trajectory, text, columns), {"at": at})


def assemble(candidates: Iterable[Candidate], _: Options, stage: Stage) -> Iterator[Row]:
    """One row for all candidates with the same text."""
    best: list[Candidate] = []
    rank = (-1, 0.0)
    seen = 0
    for one in candidates:
        seen += 1
        mine = (1 if one.row.columns["source"] == "correction" else 0, one.facts["at"])
        if mine > rank:
            best, rank = [], mine
        if mine == rank and one.row.columns["label"] not in [other.row.columns["label"] for other in best]:
            best.append(one)
    if len(best) > 1:
        stage.drop("same text, labels contradict each other", seen)
        return
    stage.drop("same text again", seen - 1)
    stage.left += 1
    yield best[0].row


KIND = Kind(
    makes="rows",
    extract=extract,
    assemble=assemble,
    content=("text",),
    texts=lambda columns: [columns["text"]],
    similar=lambda columns: columns["text"],
    by_session=False,
)
