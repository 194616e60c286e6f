"""What a harvest can be told, checked before anything is read.

Invariant: an Options value is complete and in range; an unknown option or a value out of range is a HarvestError that
names it and what is allowed. Thresholds that keep evaluation honest (near copies, protected sets) are no options.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from agentops.errors import HarvestError
from agentops.types import Effect

EFFECTS = ("read", "write", "money", "egress", "exec")
MAX_PAIRS = 64


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of one harvest; the defaults are the careful ones."""

    validation: float = 0.1  # share of groups set aside for validation
    labels: tuple[str, ...] = ()  # router: the labels that exist; () = any
    min_confidence: float = 0.8  # router: a confirmed route below it is not taken as a label
    effects: Mapping[str, Effect] = field(default_factory=dict)  # tool -> side-effect class, from the project's tools
    include_undecided: bool = False  # sft: also episodes nobody judged that ended with an answer and no failed call
    include_inaction: bool = False  # keep successes that an imported reward gave for doing nothing
    latency_gap: float = 0.25  # dpo: of two successes, by how much the faster must be faster
    max_pairs: int = 4  # dpo: most pairs of one request
    tenants: tuple[str, ...] = ()  # only these; () = all
    sources: tuple[str, ...] = ()  # only these provenances: "live", "simulated", "import:…"; () = all
    exclude_users: frozenset[str] = frozenset()  # pseudonyms of people whose episodes may not be used
    exclude_traces: frozenset[str] = frozenset()  # withdrawn or deleted episodes

    def describe(self) -> dict[str, Any]:
        """For the manifest. Who withdrew is counted, not named."""
        shown = asdict(self) | {"effects": dict(sorted(self.effects.items()))}
        return shown | {"exclude_users": len(self.exclude_users), "exclude_traces": len(self.exclude_traces)}


def read(given: Mapping[str, Any]) -> Options:
    """Options from a recipe's `[harvest]` table or from keyword choices.

    Raises:
        HarvestError: names the option, the value and the rule.
    """
    known = {one.name: one for one in fields(Options)}
    for name in given:
        if name not in known:
            raise HarvestError(f"harvest option {name!r} is not known; options: {', '.join(sorted(known))}")
    values: dict[str, Any] = {}
    for name, value in given.items():
        default = {"effects": {}}.get(name, known[name].default)
        values[name] = _checked(name, value, default)
    return Options(**values)


def _checked(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, tuple | frozenset):
        if not isinstance(value, list | tuple | set | frozenset) or not all(isinstance(one, str) for one in value):
            raise HarvestError(f"harvest option {name} = {value!r} is not allowed: give a list of strings")
        return type(default)(value)
    if isinstance(default, dict):
        if not isinstance(value, Mapping):
            raise HarvestError(f"harvest option {name} = {value!r} is not allowed: give a table of tool = effect")
        wrong = [tool for tool, effect in value.items() if effect not in EFFECTS]
        if wrong:
            raise HarvestError(f"harvest option {name}: {wrong[0]!r} = {value[wrong[0]]!r} is not one of {EFFECTS}")
        return dict(value)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise HarvestError(f"harvest option {name} = {value!r} is not allowed: give true or false")
        return value
    low, high = {"validation": (0.0, 0.5), "max_pairs": (1, MAX_PAIRS)}.get(name, (0.0, 1.0))
    number = isinstance(value, int if isinstance(default, int) else int | float) and not isinstance(value, bool)
    if not number or not low <= value <= high:
        raise HarvestError(f"harvest option {name} = {value!r} is not allowed: give a number from {low} to {high}")
    return type(default)(value)
