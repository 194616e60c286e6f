"""Requests to Cedar are not checked against the schema once more, and hold only facts that a policy names: neither may
ever change a decision."""

from typing import Any
from unittest.mock import patch

import cedarpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_world import CALM, TOOLS, call_of, run_of, spec_of

from agentops.policy import PolicySet

VALUES = (
    st.sampled_from(["SO-1", "ann@example.com", "ann@evil.test", 5, 20_000, 50_000, True, ["a"], []])
    | st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.floats()
    | st.lists(st.text(max_size=3) | st.integers(), max_size=3)
    | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)
)


class Everything:
    """Every name there is."""

    def __contains__(self, name: object) -> bool:
        return True


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tool=st.sampled_from(sorted(TOOLS)),
    chosen=st.data(),
    facts=st.fixed_dictionaries(
        {},
        optional={
            "untrusted_seen": st.booleans(),
            "calls_used": st.integers(0, 20),
            "isolation": st.sampled_from(["none", "bubblewrap"]),
            "seen_confidentiality": st.sampled_from(["public", "secret"]),
        },
    ),
)
def test_what_reaches_cedar_fits_the_schema_and_lacks_nothing(
    loaded: PolicySet, tool: str, chosen: Any, facts: dict[str, Any]
) -> None:
    names = sorted(spec_of(tool).parameters.get("properties", {}))
    arguments = {name: chosen.draw(VALUES) for name in names if chosen.draw(st.integers(0, 9))}
    given = (run_of(), call_of(tool, **arguments), spec_of(tool), {**CALM, **facts})
    usual = loaded.decide(*given)
    authorized = cedarpy.is_authorized

    def checked(request: dict, policies: Any, entities: Any) -> Any:
        answer = authorized(request, policies, entities, loaded._schema)
        assert not answer.diagnostics.errors, answer.diagnostics.errors
        assert answer.decision == authorized(request, policies, entities).decision
        return answer

    with patch.object(loaded, "_named", Everything()), patch.object(cedarpy, "is_authorized", checked):
        whole = loaded.decide(*given)
    assert (usual.effect, usual.policies) == (whole.effect, whole.policies)
