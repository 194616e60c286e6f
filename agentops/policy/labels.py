"""What conversations have read, and what was written of it: information-flow labels that outlive a run and a process.

A conversation that read untrusted content stays untrusted: over its requests, its sub-agents, replicas and restarts. A
write whose arguments came from outside marks what it wrote (by the tags it declares), and a later read of that tag, in
any conversation of the tenant, gets the mark back: memory does not wash labels. Invariant: labels here only ever join;
what can drop one is a declassifier, a tool of its own that policies decide on and the audit log records.

While the shared state cannot be reached, reads go on: an unknown conversation counts as untrusted, and new labels wait
in this process until the state is back. Effects need the state, so none can pass on labels that wait.
"""

import functools
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping

import orjson

from agentops.audit import canonical
from agentops.errors import StoreError
from agentops.graph import Clock
from agentops.policy.provenance import Provenance
from agentops.store import State
from agentops.types import Json, Labels, Run, Source

CONVERSATIONS = 100_000  # whose labels are kept in this process
TOUCH_S = 6 * 3600.0  # a conversation that goes on is noted as often in the state: `prune` takes only what was left
RUNS = 4096  # whose readings are kept in this process
ATTEMPTS = 50
_INTEGRITY = ("trusted", "untrusted")
_CONFIDENTIALITY = ("public", "internal", "personal", "secret")
_CONVERSATION = "labels/conversation/"
WAITING = 10_000  # conversations whose labels may wait for the state
LEAST = Labels("trusted", "internal")  # of a conversation that has read nothing, or nothing worth a note
WORST = Labels("untrusted", "secret")
Part = tuple[Json, Labels]


class Readings:
    """Labels of conversations and of stored values in the shared state; values read by the runs of this process."""

    def __init__(self, state: State, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._conversations: OrderedDict[str, tuple[Labels, float]] = OrderedDict()  # and when the state was asked
        self._waiting: dict[str, Labels] = {}  # to be stored once the state is back
        self._runs: OrderedDict[tuple[str, str], tuple[float, Provenance]] = OrderedDict()  # and when the run is over

    def seen(self, run: Run, effect: bool = True) -> Labels:
        """What the run's conversation has read so far, in any process.

        Args:
            run: whose session is meant.
            effect: for a call that changes something: then the shared state is asked even when this process knows the
                conversation, because another one may read for it too.

        Raises:
            StoreError: for an effect, the shared state cannot answer or holds something else.
        """
        key = _conversation(run)
        known, asked = self._conversations.get(key, (None, 0.0))
        try:
            if effect:
                self._store_waiting()
            old = self._clock.now() - asked > TOUCH_S
            if known is None or (effect and known != WORST) or old:
                known = self._touched(key, known or LEAST)
                self._keep(key, known)
        except StoreError:
            if effect:
                raise
        return (known or WORST).join(run.labels)

    def sources(
        self,
        run: Run,
        arguments: Mapping[str, Json],
        defaults: Mapping[str, Json],
        known: Mapping[str, Source],
        amount: str = "",
    ) -> dict[str, Source]:
        """Where each argument comes from, as far as this run's readings tell: see `Provenance.sources`."""
        return self._provenance(run).sources(arguments, defaults, known, amount)

    def vouch(self, run: Run, arguments: Mapping[str, Json]) -> None:
        """Take the values of a call that a person approved for trusted, for the rest of this run."""
        self._provenance(run).vouch(arguments)

    def remember(self, run: Run, parts: Iterable[Part], effect: bool = True) -> None:
        """Join what a call has returned: each value with its labels.

        Raises:
            StoreError: after an effect, the shared state cannot be written: the result must not be used.
        """
        provenance = self._provenance(run)
        joined = LEAST
        for value, labels in parts:
            provenance.read(value, labels)
            joined = joined.join(labels)
        key = _conversation(run)
        try:
            self._join(key, joined)
        except StoreError:
            if effect or (key not in self._waiting and len(self._waiting) >= WAITING):
                raise
            self._waiting[key] = self._waiting.get(key, LEAST).join(joined)
            self._keep(key, self._known(key).join(joined))

    def stored(self, tenant: str, tags: Iterable[str]) -> Labels:
        """The labels of what was written under `tags`; those of nothing special when nothing was."""
        found = LEAST
        for tag in tags:
            found = found.join(self._stored(_tag(tenant, tag)))
        return found

    def store(self, tenant: str, tags: Iterable[str], labels: Labels) -> None:
        """Mark what is about to be written under `tags`, before it is written."""
        for tag in tags:
            self._join(_tag(tenant, tag), labels)

    def prune(self, before: float) -> int:
        """Forget conversations that nobody went on with since a time (seconds since the epoch); returns how many.

        What was stored keeps its marks: what was written then can still be read.
        """
        old = [(key, version) for key, value, version in self._state.scan(_CONVERSATION) if _at(value) < before]
        return sum(self._state.compare_and_set(key, None, version) for key, version in old)

    def _store_waiting(self) -> None:
        for key, labels in list(self._waiting.items()):
            self._conversations.pop(key, None)  # it holds what the state does not
            self._join(key, labels)
            del self._waiting[key]

    def _provenance(self, run: Run) -> Provenance:
        key, now = (run.principal.tenant, run.id), self._clock.now()
        _, found = self._runs.get(key, (0.0, None))
        if found is None:
            # What the conversation read before is not known value by value: only what the user names is sure.
            found = Provenance(run.request, complete=self.seen(run, effect=False).integrity == "trusted")
            while self._runs and (len(self._runs) >= RUNS or next(iter(self._runs.values()))[0] < now):
                self._runs.popitem(last=False)  # what runs read may be megabytes each
        self._runs[key] = (run.deadline, found)
        self._runs.move_to_end(key)
        return found

    def _join(self, key: str, labels: Labels) -> None:
        known = self._known(key)
        if known.join(labels) == known:
            return
        self._keep(key, self._written(key, labels))

    def _written(self, key: str, labels: Labels) -> Labels:
        """Join `labels` into what the state has; what it has then."""
        for _ in range(ATTEMPTS):
            found = self._state.get(key)
            stored = LEAST if found is None else _decoded(found[0])
            joined = stored.join(labels)
            if joined == stored:
                return stored
            if self._state.compare_and_set(key, self._noted(joined), 0 if found is None else found[1]):
                return joined
        raise StoreError("a conversation's labels were changed by others again and again: try again")

    def _noted(self, labels: Labels) -> bytes:
        return orjson.dumps([labels.integrity, labels.confidentiality, int(self._clock.now())])

    def _touched(self, key: str, known: Labels) -> Labels:
        """What the state has of a conversation, joined with `known`; written anew when that was long ago or less."""
        found = self._state.get(key)
        stored = LEAST if found is None else _decoded(found[0])
        if stored.join(known) != stored:
            return self._written(key, known)
        if found is not None and self._clock.now() - _at(found[0]) > TOUCH_S:
            self._state.compare_and_set(key, self._noted(stored), found[1], durable=False)  # or another one just did
        return stored

    def _known(self, key: str) -> Labels:
        return self._conversations.get(key, (LEAST, 0.0))[0]

    def _stored(self, key: str) -> Labels:
        found = self._state.get(key)
        return LEAST if found is None else _decoded(found[0])

    def _keep(self, key: str, labels: Labels) -> None:
        self._conversations[key] = (labels, self._clock.now())
        self._conversations.move_to_end(key)
        while len(self._conversations) > CONVERSATIONS:
            self._conversations.popitem(last=False)


def _conversation(run: Run) -> str:
    return _conversation_key(run.principal.tenant, run.session)


@functools.lru_cache(maxsize=RUNS)
def _conversation_key(tenant: str, session: str) -> str:
    return _CONVERSATION + _digest([tenant, session])


def _tag(tenant: str, tag: str) -> str:
    return "labels/stored/" + _digest([tenant, tag])


def _digest(parts: list[str]) -> str:
    return hashlib.sha256(canonical(parts)).hexdigest()


def _at(data: bytes) -> float:
    _decoded(data)
    return float(orjson.loads(data)[2])


def _decoded(data: bytes) -> Labels:
    try:
        integrity, confidentiality, at = orjson.loads(data)
        if integrity in _INTEGRITY and confidentiality in _CONFIDENTIALITY and type(at) is int:
            return Labels(integrity, confidentiality)
    except (orjson.JSONDecodeError, ValueError, TypeError):
        pass  # told below, like every other form that is not ours
    raise StoreError("the labels of a conversation in the shared state are damaged: it can go on once they are removed")
